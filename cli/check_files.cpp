#include "cli/check_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>

#include "models/error.h"
#include "models/json.h"
#include "planner/frameworks/option.h"
#include "planner/frameworks/own_copy.h"
#include "planner/frameworks/readers/job_files.h"
#include "planner/frameworks/readers/own_script.h"
#include "planner/frameworks/shell/shell.h"

namespace qplan {
namespace {

namespace fs = std::filesystem;

// Behind the last of a path's parts that only a run can tell: "${DIR}", "$(cd "$(dirname "$0")"
// &>/dev/null && pwd)", "$DIR". 0: it has none.
std::size_t end_of_unknown(const std::string& path) {
  std::size_t end = 0;
  for (std::size_t at = 0; at < path.size(); ++at) {
    if (path[at] != '$') continue;
    const char open = at + 1 < path.size() ? path[at + 1] : '\0';
    if (open == '(' || open == '{') {
      const char close = open == '(' ? ')' : '}';
      int depth = 0;
      for (++at; at < path.size(); ++at) {
        if (path[at] == open) ++depth;
        if (path[at] == close && --depth == 0) break;
      }
    }
    end = std::min(at + 1, path.size());
  }
  return end;
}

// What a script's path says below its own folder, whose name only a run can tell: "models/x.sh" of
// "${DIR}/models/x.sh". Empty for a path from the root.
fs::path below_folder(const std::string& path) {
  const std::size_t unknown = end_of_unknown(path);
  const std::size_t slash = unknown == 0 ? std::string::npos : path.find('/', unknown);
  const fs::path end = slash == std::string::npos ? path : path.substr(slash + 1);
  return end.is_absolute() ? fs::path() : end;
}

constexpr int kMostFolders = 8;  // above a file
constexpr std::uintmax_t kMostBytes = 1 << 20;

class CheckFiles {
 public:
  explicit CheckFiles(const std::vector<std::string>& names) {
    for (const std::string& name : names) files_.push_back({name, read_text_file(name)});
  }

  std::vector<ConfigText> read() {
    for (std::size_t i = 0; i < files_.size(); ++i) {  // which grows by what is found
      const FileKind kind = file_kind_of(files_[i]);
      if (kind == FileKind::script) follow(ConfigText(files_[i]));
      if (kind == FileKind::yaml) follow_yaml(ConfigText(files_[i]));
    }
    find_parsers();
    return std::move(files_);
  }

 private:
  // Of a framework's repository that a file stands in, what parses its arguments.
  void find_parsers() {
    std::set<fs::path> folders;  // above the files, each once
    std::error_code no;
    for (const ConfigText& file : files_) {
      fs::path folder = fs::absolute(file.name, no).parent_path();
      for (int above = 0; above < kMostFolders && folders.insert(folder).second; ++above) {
        if (!folder.has_relative_path()) break;
        folder = folder.parent_path();
      }
    }
    for (const fs::path& folder : folders) {
      for (const std::string_view parser : files_of_parsers()) {
        const fs::path at = folder / parser;
        if (!parser.ends_with('/')) {
          add_parser(at);
        } else if (fs::is_directory(at, no)) {
          for (const auto& entry : fs::directory_iterator(at, no)) add_parser(entry.path());
        }
      }
    }
  }

  void add_parser(const fs::path& at) {
    std::error_code no;
    if (at.extension() != ".py" || !fs::is_regular_file(at, no)) return;
    if (fs::file_size(at, no) > kMostBytes) return;
    const bool given = std::any_of(files_.begin(), files_.end(), [&](const ConfigText& known) {
      return fs::equivalent(known.name, at, no);
    });
    if (!given) files_.push_back({at.string(), read_text_file(at.string())});
  }

  void follow(const ConfigText& file) {
    const auto beside = [&](const std::string& path) -> std::optional<FoundFile> {
      const ConfigText* const found = find(file.name, path, {".sh"});
      return found == nullptr ? std::nullopt : std::optional(FoundFile{found->name, found->text});
    };
    const ShellScript script = read_shell(file.text, file.name, beside);
    for (const ShellCommand& command : script.commands) find_configs(command);
  }

  // "deepspeed: examples/deepspeed/ds_z3_config.json" of LLaMA-Factory's and axolotl's YAML, whose
  // paths begin where the job is started: in one of the folders above.
  void follow_yaml(const ConfigText& file) {
    constexpr std::string_view kKey = "deepspeed:", kBlock = "deepspeed_config_file:";
    std::istringstream lines(file.text);
    bool lists_parents = false;
    for (std::string line; std::getline(lines, line);) {
      lists_parents = find_parents(file.name, line, lists_parents);
      // accelerate's yaml has it in a block.
      const std::size_t begin = line.find_first_not_of(' ');
      const bool block =
          begin != std::string::npos && line.compare(begin, kBlock.size(), kBlock) == 0;
      if (!block && !line.starts_with(kKey)) continue;
      std::istringstream words(line.substr(block ? begin + kBlock.size() : kKey.size()));
      std::string path;
      words >> path;
      std::erase_if(path, [](char c) { return c == '"' || c == '\''; });
      find_above(file.name, path, {".json"});
    }
  }

  // "defaults: ../grpo_math_1B.yaml" of NeMo-RL's, or a list of them, beside the file itself.
  // Whether the next line may go on with the list.
  bool find_parents(const std::string& reader, const std::string& line, bool in_list) {
    constexpr std::string_view kDefaults = "defaults:";
    std::string rest = line;
    if (line.starts_with(kDefaults)) {
      rest = line.substr(kDefaults.size());
    } else if (!in_list || line.find_first_not_of(" -") == std::string::npos ||
               line.find('-') == std::string::npos || line[0] == '#') {
      return in_list && line.empty();
    }
    std::istringstream words(rest.substr(0, rest.find('#')));
    for (std::string path; words >> path;) {
      std::erase_if(path, [](char c) { return c == '"' || c == '\''; });
      find(reader, path, {".yaml", ".yml"});
    }
    return true;
  }

  void find_above(const std::string& reader, const std::string& path,
                  std::initializer_list<std::string_view> extensions) {
    std::error_code no;
    fs::path folder = fs::absolute(reader, no).parent_path();
    for (int above = 0; above < kMostFolders; ++above) {
      if (fs::is_regular_file(folder / path, no)) {
        find((folder / "reader").string(), path, extensions);
        return;
      }
      if (!folder.has_relative_path()) return;
      folder = folder.parent_path();
    }
  }

  // Null: no such file lies beside `reader`.
  const ConfigText* find(const std::string& reader, const std::string& path,
                         std::initializer_list<std::string_view> extensions) {
    constexpr std::size_t kMostFiles = 64;
    const fs::path at = fs::path(reader).parent_path() / below_folder(path);
    std::error_code no;
    for (const ConfigText& known : files_) {
      if (fs::equivalent(known.name, at, no)) return &known;
    }
    const bool wanted = std::find(extensions.begin(), extensions.end(), at.extension().string()) !=
                        extensions.end();
    if (!wanted || !fs::is_regular_file(at, no) || fs::file_size(at, no) > kMostBytes ||
        files_.size() >= kMostFiles) {
      return nullptr;
    }
    files_.push_back({at.string(), read_text_file(at.string())});
    return &files_.back();
  }

  // A configuration that a script names by a path: beside it, where qplan was started, or, of a
  // path with folders, in one of the folders above, for scripts are started from their repository's
  // root.
  void find_started(const std::string& reader, const std::string& path) {
    const std::initializer_list<std::string_view> kinds{".json", ".yaml", ".yml", ".toml"};
    if (find(reader, path, kinds) != nullptr) return;
    const fs::path below = below_folder(path);
    if (below.empty()) return;
    if (find("", path, kinds) == nullptr && below.has_parent_path()) {
      find_above(reader, below.string(), kinds);
    }
  }

  void find_configs(const ShellCommand& command) {
    constexpr std::array<std::string_view, 10> kKeys{
        "--deepspeed",       "--deepspeed_config",      "--deepspeed-config", "--config_file",
        "--fsdp_config",     "--deepspeed_config_file", "--fsdp-config",      "--config-file",
        "--job.config_file", "--job.config-file"};
    // NeMo AutoModel's recipes; other programs' --config is anything.
    const bool automodel = std::any_of(
        command.words.begin(), command.words.end(),
        [](const ShellWord& word) { return word.text.find("automodel") != std::string::npos; });
    const auto is_key = [&](std::string_view word) {
      return std::find(kKeys.begin(), kKeys.end(), word) != kKeys.end() ||
             (automodel && (word == "--config" || word == "-c"));
    };
    find_hydra_yaml(command);
    for (std::size_t i = 0; i < command.words.size(); ++i) {
      const ShellWord& word = command.words[i];
      // "llamafactory-cli train x.yaml", "accelerate launch -m axolotl.cli.train x.yaml".
      const bool yaml = word.text.ends_with(".yaml") || word.text.ends_with(".yml");
      const bool named = i > 0 && (!command.words[i - 1].text.starts_with("--") ||
                                   command.words[i - 1].text == "--config" ||  // NeMo-RL's, TRL's
                                   command.words[i - 1].text == "--accelerate_config");
      if (yaml && named) {
        find_above(word.place.file, word.text, {".yaml", ".yml"});
      }
      const std::string before = i == 0 ? "" : command.words[i - 1].text;
      const std::size_t equals = word.text.find('=');
      if (equals != std::string::npos && is_key(word.text.substr(0, equals))) {
        find_started(word.place.file, word.text.substr(equals + 1));
      } else if (is_key(before)) {
        find_started(word.place.file, word.text);
      } else if (before == "--module") {
        find_python(word.place.file, word.text + ".py", "Trainer.Config");  // torchtitan's
      } else if (word.text.ends_with(".py")) {
        find_python(word.place.file, word.text, "megatron.bridge");
      }
    }
  }

  // verl's "--config-path=examples/config --config-name=x", whose paths begin where the job is
  // started.
  void find_hydra_yaml(const ShellCommand& command) {
    std::string folder, name, reader;
    for (const ShellWord& word : command.words) {
      const std::size_t equals = word.text.find('=');
      if (equals == std::string::npos) continue;
      if (word.text.starts_with("--config-path=")) folder = word.text.substr(equals + 1);
      if (!word.text.starts_with("--config-name=")) continue;
      name = word.text.substr(equals + 1);
      reader = word.place.file;
    }
    if (folder.empty() || name.empty()) return;
    if (!name.ends_with(".yaml")) name += ".yaml";
    const fs::path below = below_folder(folder + "/" + name);
    if (!below.empty()) find_above(reader, below.string(), {".yaml"});
  }

  // Programs are read where they are configurations.
  void find_python(const std::string& reader, const std::string& path, std::string_view mark) {
    const std::size_t before = files_.size();
    const ConfigText* const found = find(reader, path, {".py"});
    if (found == nullptr || files_.size() == before) return;
    if (found->text.find(mark) == std::string::npos) files_.pop_back();
  }

  std::vector<ConfigText> files_;
};

}  // namespace

std::vector<ConfigText> read_check_files(const std::vector<std::string>& names) {
  return CheckFiles(names).read();
}

namespace {

// Arguments of whatever program, and programs of whatever use, are read as a job's where somebody
// says that they are; here they have to show it.
bool speaks_of_training(const ConfigPart& part) {
  constexpr int kEnough = 2;  // options of Megatron's: one, such as --seed, is anybody's
  if (part.dialect == Dialect::own_script) return !wrapper_of(part.settings).empty();
  if (!takes_megatrons(part.dialect)) return true;
  const auto known =
      std::count_if(part.settings.begin(), part.settings.end(), [](const Setting& setting) {
        return known_options("megatron").find(setting.key) != nullptr ||
               known_options("slime").find(setting.key) != nullptr ||
               known_options("megatron_deepspeed").find(setting.key) != nullptr;
      });
  return known >= kEnough;
}

}  // namespace

std::string why_no_config(const std::vector<ConfigText>& files) {
  try {
    const JobFiles job = read_job_files(files);
    const bool speaks = std::any_of(job.parts.begin(), job.parts.end(), speaks_of_training);
    if (job.host_slots || speaks) return "";
    return job.findings.empty() ? "no framework reads it" : job.findings.front().message;
  } catch (const Error& error) {
    return error.what();
  }
}

JobRemark job_remark(const std::vector<ConfigText>& files) {
  constexpr std::string_view kMark = "qplan:";
  for (const ConfigText& file : files) {
    if (is_parser(file)) continue;
    std::istringstream lines(file.text);
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      const std::size_t sign = line.find_first_of("#/");  // of a script's, YAML's or JSON's remark
      const std::size_t mark = line.find(kMark, sign == std::string::npos ? line.size() : sign);
      if (mark == std::string::npos) continue;
      const std::string between = line.substr(sign, mark - sign);
      if (between.find_first_not_of("#/ ") != std::string::npos) continue;
      JobRemark remark{{file.name, number}, {}};
      std::istringstream words(line.substr(mark + kMark.size()));
      for (std::string word; words >> word;) remark.words.push_back(word);
      if (!remark.words.empty()) return remark;
    }
  }
  return {};
}

}  // namespace qplan
