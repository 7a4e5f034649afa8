#include "planner/frameworks/readers/job_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <span>

#include "models/error.h"
#include "planner/frameworks/emit_mark.h"
#include "planner/frameworks/megatron/bridge.h"
#include "planner/frameworks/megatron/bridge_program.h"
#include "planner/frameworks/option.h"
#include "planner/frameworks/own_copy.h"
#include "planner/frameworks/readers/alike_paths.h"
#include "planner/frameworks/readers/batch_options.h"
#include "planner/frameworks/readers/commands.h"
#include "planner/frameworks/readers/dashes.h"
#include "planner/frameworks/readers/gathered_job.h"
#include "planner/frameworks/readers/hostfile.h"
#include "planner/frameworks/readers/key_files.h"
#include "planner/frameworks/readers/layers.h"
#include "planner/frameworks/readers/meant_blocks.h"
#include "planner/frameworks/readers/misspelt_variables.h"
#include "planner/frameworks/readers/own_script.h"
#include "planner/frameworks/readers/python_dicts.h"
#include "planner/frameworks/readers/python_functions.h"
#include "planner/frameworks/readers/python_settings.h"
#include "planner/frameworks/readers/remarks.h"

namespace qplan {
namespace {

constexpr std::string_view kStartsNothing =
    "nothing here starts a training job or lists its arguments";

void check_is_text(const ConfigText& file) {
  if (file.text.find('\0') == std::string::npos) return;
  throw Error(fmt::format("{} is not a text file; give a configuration or a script", file.name));
}

// accelerate has a ParallelismConfig of its own.
bool is_of_accelerate(const std::string& program) {
  return program.find("torchtitan") == std::string::npos &&
         (program.find("from accelerate") != std::string::npos ||
          program.find("import accelerate") != std::string::npos);
}

// Whether arrays of a script that starts nothing are some job's arguments, and not for the most
// part another program's (docker's, az's).
bool are_of_a_job(std::span<const ShellWord> words) {
  std::size_t flags = 0, known = 0;
  for (const ShellWord& word : words) {
    if (!word.text.starts_with("--")) continue;
    const std::string name = word.text.substr(0, word.text.find_first_of(" ="));
    ++flags;
    if (name.starts_with("--sglang-")) ++known;  // slime's, for what sglang has
    for (const std::string_view list : {"megatron", "slime", "megatron_deepspeed", "trainer", "trl",
                                        "ms_swift", "ms_swift_megatron", "torchrun"}) {
      if (known_options(list).find(name) == nullptr) continue;
      ++known;
      break;
    }
  }
  return 2 * known >= flags;
}

class JobReader {
 public:
  explicit JobReader(std::span<const ConfigText> files) {
    // Which is one where nothing else is given.
    const bool parsers_alone = std::all_of(files.begin(), files.end(), is_parser);
    for (const ConfigText& file : files) {
      if (parsers_alone || !is_parser(file)) job_.texts.push_back(file);
    }
  }

  JobFiles read() {
    for (const ConfigText& file : job_.texts) check_is_text(file);
    const std::set<std::string> started = started_by_others();
    for (const ConfigText& file : job_.texts) {
      if (!started.contains(file.name)) read_file(file);
    }
    // Scripts that start something come first: what they source is not read a second time.
    for (const Arrays& arrays : arrays_) {
      if (sourced_.count(arrays.name) > 0) continue;
      add_arguments(with_two_dashes(arrays.words, job_.findings), {arrays.name, 1}, "", job_);
    }
    choose_functions();
    put_bridge_together();
    find_misspelt_variables();
    put_together(job_);
    forgive_helpers();
    return std::move(job_);
  }

 private:
  // Of a script that starts nothing.
  struct Arrays {
    std::string name;
    std::vector<ShellWord> words;
  };

  // Scripts that other scripts start are read there, with what those hand to them; unless each is
  // started by another.
  std::set<std::string> started_by_others() {
    std::set<std::string> started;
    std::size_t scripts = 0;
    for (const ConfigText& file : job_.texts) {
      if (file_kind_of(file) != FileKind::script) continue;
      ++scripts;
      const ShellScript script = read_shell(file.text, file.name, finder(file.name));
      started.insert(script.started.begin(), script.started.end());
    }
    sourced_.clear();
    return started.size() < scripts ? started : std::set<std::string>();
  }

  // A file that cannot be read may be so because a remark has taken its end.
  void read_file(const ConfigText& file) {
    const FileKind kind = file_kind_of(file);
    const std::vector<Finding> swallowed = swallowed_by_remarks(file, kind);
    job_.findings.insert(job_.findings.end(), swallowed.begin(), swallowed.end());
    try {
      read_as(file, kind);
    } catch (const Error& error) {
      if (swallowed.empty()) throw;
      throw Error(fmt::format("{}; {}: {}", error.what(), to_string(swallowed.front().place),
                              swallowed.front().message));
    }
  }

  void read_as(const ConfigText& file, FileKind kind) {
    const Place whole{file.name, 0};
    switch (kind) {
      case FileKind::empty:
        return job_.note("empty_file", whole, "the file is empty", "");
      case FileKind::prose:
        if (base_name(file.name) == kHostsFile ||
            file.text.find(kWrittenByEmit) != std::string::npos) {
          return;  // what a job's files say already
        }
        return job_.note("prose", whole, "prose is not read: no framework reads it", "");
      case FileKind::json:
        return read_json(file.text, file.name, 1, job_);
      case FileKind::yaml:
        return read_yaml(file, job_);
      case FileKind::python:
        return read_python_file(file);
      case FileKind::toml:
        return read_toml(file, job_);
      case FileKind::hostfile:
        return read_hosts(file);
      case FileKind::script:
        return read_script(file);
    }
  }

  void read_python_file(const ConfigText& file) {
    PythonText text = read_python(file.text, file.name);
    const Place whole{file.name, 0};
    if (file.text.find("megatron.bridge") != std::string::npos) {
      PythonText one = text;
      keep_one_configuration(file, one);
      programs_.push_back({std::move(one), whole, merges_overrides(file.text)});
    } else if (Settings titan = torchtitan_settings(text);
               !titan.empty() && !is_of_accelerate(file.text)) {
      job_.add(Dialect::torchtitan, std::move(titan), whole);
      titans_.push_back({job_.parts.size() - 1, job_.python.size(), &file});
    }
    if (file.text.find("xtuner.v1") != std::string::npos) {
      job_.python.push_back(std::move(text));
      return job_.unknown(whole, "this is a configuration of xtuner, which is not read here",
                          "ask `qplan predict` with the same degrees");
    }
    if (Settings own = own_script_settings(text, file); !own.empty()) {
      job_.add(Dialect::own_script, std::move(own), whole);
    }
    if (Settings trainer = training_arguments(text, file); !trainer.empty()) {
      job_.add(Dialect::trainer, std::move(trainer), whole);
    }
    if (Settings deepspeed = deepspeed_dictionary(text, file.text, file.name); !deepspeed.empty()) {
      auto meant = mend_block_names(deepspeed, known_options("deepspeed"), file.text);
      job_.add(Dialect::ds_config, std::move(deepspeed), whole);
      job_.parts.back().meant_blocks = std::move(meant);
    }
    job_.python.push_back(std::move(text));
  }

  // Of Megatron-Bridge's files one job: a program or a recipe, a YAML on top of it, and words on
  // top of both. Programs alone are judged as they are.
  void put_bridge_together() {
    std::vector<BridgeSource>& sources = job_.bridge_sources;
    if (sources.empty()) {
      for (const BridgeProgramFile& program : programs_) {
        add_bridge(program.text, program.place);
        if (!program.merges) continue;
        job_.assumed.emplace_back(
            "nothing on top of the program: it merges a YAML and words of its command into its "
            "configuration, which are not among the files given");
      }
      return;
    }
    const auto is_words = [](const BridgeSource& s) { return s.kind == BridgeYaml::none; };
    const auto words = std::find_if(sources.begin(), sources.end(), is_words);
    const BridgeSource* yaml = nullptr;
    if (words != sources.end() && !words->yaml.text.empty()) {
      yaml = most_alike(std::span(sources), words->yaml.text, [&](const BridgeSource& s) {
        return is_words(s) ? std::string() : s.place.file;
      });
      if (yaml == nullptr) note_missing_yaml(words->yaml);
    } else {
      const auto first = std::find_if_not(sources.begin(), sources.end(), is_words);
      if (first != sources.end()) yaml = &*first;
    }
    PythonText all;
    const auto append = [&](const PythonText& text) {
      all.calls.insert(all.calls.end(), text.calls.begin(), text.calls.end());
      all.assignments.insert(all.assignments.end(), text.assignments.begin(),
                             text.assignments.end());
    };
    Place place = words != sources.end() ? words->place : yaml->place;
    if (!programs_.empty()) append(programs_.front().text);
    if (yaml != nullptr) append(yaml->text);
    if (words != sources.end()) append(words->text);
    job_.bridge_is_whole = yaml != nullptr && yaml->kind != BridgeYaml::overrides;
    add_bridge(all, place);
    if (words != sources.end()) job_.parts.back().script = words->script;
    if (yaml != nullptr) job_.parts.back().meant_blocks = yaml->meant_blocks;
    job_.bridge = std::move(all);
    for (const BridgeSource& other : sources) {
      const bool judged = &other == yaml || (words != sources.end() && &other == &*words);
      if (judged) continue;
      job_.note("several_configurations", other.place,
                "this is another job of Megatron-Bridge's, and the first is judged alone",
                "give each in files of its own, to have it judged");
    }
  }

  void add_bridge(const PythonText& text, const Place& place) {
    job_.add(Dialect::bridge, bridge_settings(text), place);
    for (std::string& open : bridge_program(text).open) {
      job_.assumed.push_back(std::move(open));
      job_.takes_less = true;
    }
  }

  void note_missing_yaml(const ShellWord& named) {
    job_.note("config_missing", named.place,
              fmt::format("{} is named here and is not among the files given: what it says is not "
                          "judged",
                          shown(base_name(named.text))),
              fmt::format("give {} too", shown(base_name(named.text))));
    job_.assumed.push_back(fmt::format("nothing of what {} sets", shown(base_name(named.text))));
    job_.takes_less = true;
  }

  // Of a file of torchtitan's the function that a command names is the job.
  void choose_functions() {
    for (const TitanFile& titan : titans_) {
      const PythonFunctions functions(titan.file->text);
      const auto named =
          std::find_if(job_.functions.begin(), job_.functions.end(),
                       [&](const ShellWord& word) { return functions.named(word.text) != 0; });
      const std::string name = named == job_.functions.end() ? "" : named->text;
      TitanFunction one = torchtitan_function(titan.file->text, job_.python[titan.python], name);
      if (one.several) note_several(*titan.file, one.name, "name one by --config, or give");
      job_.parts[titan.part].settings = std::move(one.settings);
    }
  }

  // A file that a script reads and nobody gave may set or use any.
  void find_misspelt_variables() {
    static constexpr std::array<std::string_view, 6> kHarmless{"activate", "bashrc", "profile",
                                                               "conda.sh", "cshrc",  "zshrc"};
    for (const Finding& finding : job_.findings) {
      if (finding.rule != "sourced_file_missing") continue;
      const bool harmless = std::any_of(kHarmless.begin(), kHarmless.end(), [&](auto name) {
        return finding.message.find(name) != std::string::npos;
      });
      if (!harmless) return;
    }
    std::vector<const ConfigText*> scripts;
    for (const ConfigText& file : job_.texts) {
      if (file_kind_of(file) == FileKind::script) scripts.push_back(&file);
    }
    for (Finding& finding : misspelt_variables(scripts)) {
      job_.findings.push_back(std::move(finding));
    }
  }

  // A script that starts nothing, beside files that make the job: what one reads or is made by.
  void forgive_helpers() {
    if (job_.parts.empty()) return;
    for (Finding& finding : job_.findings) {
      if (finding.rule == "unknown_file" && finding.message == kStartsNothing) {
        finding.severity = Severity::note;
      }
    }
  }

  void note_several(const ConfigText& file, const std::string& judged, std::string_view instead) {
    job_.note("several_configurations", {file.name, 0},
              fmt::format("several functions make a configuration, and {}'s is judged", judged),
              fmt::format("{} the others in files of their own, to have them judged", instead));
  }

  // Of functions that say different things of one field, each makes a configuration of its own.
  void keep_one_configuration(const ConfigText& file, PythonText& text) {
    const std::string one = one_of_several(file.text, text);
    if (!one.empty()) note_several(file, one, "give");
  }

  void read_hosts(const ConfigText& file) {
    const Hostfile hosts = read_hostfile(file);
    job_.host_slots = hosts.slots;
    job_.findings.insert(job_.findings.end(), hosts.findings.begin(), hosts.findings.end());
  }

  // Of the files given that a script, itself apart, can mean: the one whose path ends most alike.
  FindFile finder(const std::string& reader) {
    return [this, reader](const std::string& path) -> std::optional<FoundFile> {
      const ConfigText* const meant =
          most_alike(std::span(job_.texts), path, [&](const ConfigText& other) {
            return other.name == reader ? std::string() : other.name;
          });
      if (meant == nullptr) return std::nullopt;
      sourced_.insert(meant->name);
      return FoundFile{meant->name, meant->text};
    };
  }

  void read_script(const ConfigText& file) {
    const ShellScript script = read_shell(file.text, file.name, finder(file.name));
    job_.findings.insert(job_.findings.end(), script.findings.begin(), script.findings.end());
    for (Finding& finding : misspelt_directives(script.directives)) {
      job_.findings.push_back(std::move(finding));
    }
    job_.missing.insert(job_.missing.end(), script.missing.begin(), script.missing.end());
    for (const ShellFile& written : script.files) {
      const std::size_t start = written.text.find_first_not_of(" \t\r\n");
      if (start == std::string::npos || written.text[start] != '{' || !written.resolved) continue;
      const std::size_t settings = job_.parts.size(), findings = job_.findings.size();
      try {
        read_json(written.text, written.place.file, written.place.line, job_);
      } catch (const Error& error) {
        add_unreadable(written, error.what());
        continue;
      }
      place_in(written.span, settings, findings);
    }
    const std::size_t installs = job_.installs.size();
    bool started = false;
    for (const ShellCommand& command : script.commands) {
      started |= read_command(command, script.directives, job_);
    }
    if (started || job_.installs.size() > installs) return;
    Arrays arrays{file.name, {}};
    for (const auto& [name, words] : script.arrays) {
      arrays.words.insert(arrays.words.end(), words.begin(), words.end());
    }
    if (!arrays.words.empty() && are_of_a_job(arrays.words)) {
      arrays_.push_back(std::move(arrays));
    } else if (const ShellWord* const swift = swift_command(script)) {
      job_.unknown(swift->place, "ms-swift trains nothing by this command: sft, pt and rlhf do",
                   "give a script that trains");
    } else if (!script.missing.empty()) {
      const std::string name = shown(base_name(script.missing.back().text));
      job_.unknown(script.missing.back().place,
                   fmt::format("{} is started here and is not among the files given", name),
                   fmt::format("give {} too", name));
    } else {
      job_.unknown({file.name, 0}, std::string(kStartsNothing),
                   "give a launch script, an argument list, ds_config.json, accelerate's yaml or a "
                   "torchtitan function");
    }
  }

  // "run.sh:12: this is not JSON: ...", of a file that the script writes.
  void add_unreadable(const ShellFile& written, const std::string& why) {
    Place place = written.place;
    std::string message = why;
    const std::string name = place.file + ":";
    if (message.starts_with(name)) {
      message.erase(0, name.size());
      const int line = std::atoi(message.c_str());
      if (line > 0) place.line = line;
      message.erase(0, std::min(message.find(' ') + 1, message.size()));
    }
    job_.findings.push_back({Severity::error,
                             "unreadable_json",
                             std::move(place),
                             fmt::format("{}: {}", shown(base_name(written.name)), message),
                             "what reads it stops",
                             "Python 3, Lib/json/decoder.py",
                             {}});
  }

  // Of a here-document: what was read of it last stands in `span` of the script.
  void place_in(Span span, std::size_t settings, std::size_t findings) {
    const bool as_is = span.end > span.begin;
    const auto moved = [&](Span s) {
      return as_is ? Span{s.begin + span.begin, s.end + span.begin} : Span{};
    };
    for (std::size_t i = settings; i < job_.parts.size(); ++i) {
      Settings placed;
      for (Setting setting : job_.parts[i].settings) {
        setting.whole = moved(setting.whole);
        setting.text = moved(setting.text);
        setting.name = moved(setting.name);
        placed.add(std::move(setting));
      }
      job_.parts[i].settings = std::move(placed);
      for (MeantBlock& block : job_.parts[i].meant_blocks) block.name = moved(block.name);
    }
    for (std::size_t i = findings; i < job_.findings.size(); ++i) {
      for (Edit& edit : job_.findings[i].fix) {
        edit.begin += span.begin;
        edit.end += span.begin;
      }
      if (!as_is) job_.findings[i].fix.clear();
    }
  }

  // A file of torchtitan's, by its part, and its text among the job's.
  struct TitanFile {
    std::size_t part, python;
    const ConfigText* file;
  };

  struct BridgeProgramFile {
    PythonText text;
    Place place;
    bool merges;  // a YAML and words of its command
  };

  GatheredJob job_;
  std::vector<TitanFile> titans_;
  std::vector<BridgeProgramFile> programs_;
  std::vector<Arrays> arrays_;
  std::set<std::string> sourced_;
};

}  // namespace

bool has_names_alone(const ConfigPart& part) {
  return part.dialect == Dialect::accelerate && part.of_accelerate;
}

const ConfigPart* JobFiles::find(Dialect dialect) const {
  const auto found = std::find_if(parts.begin(), parts.end(), [&](const ConfigPart& part) {
    return part.dialect == dialect && !has_names_alone(part);
  });
  return found == parts.end() ? nullptr : &*found;
}

JobFiles read_job_files(std::span<const ConfigText> files) {
  return JobReader(files).read();
}

}  // namespace qplan
