#include "planner/frameworks/readers/job_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <span>
#include <sstream>

#include "models/error.h"
#include "planner/frameworks/deepspeed/deepspeed.h"
#include "planner/frameworks/finetuning/finetuners.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/megatron/bridge.h"
#include "planner/frameworks/megatron/swift.h"
#include "planner/frameworks/readers/arguments.h"
#include "planner/frameworks/readers/hostfile.h"
#include "planner/frameworks/readers/own_script.h"
#include "planner/frameworks/readers/python_functions.h"
#include "planner/frameworks/readers/python_settings.h"
#include "planner/frameworks/readers/remarks.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/frameworks/torch/torch.h"

namespace qplan {
namespace {

void check_is_text(const ConfigText& file) {
  if (file.text.find('\0') == std::string::npos) return;
  throw Error(fmt::format("{} is not a text file; give a configuration or a script", file.name));
}

// Where a flag takes several values, "a b" and "[a b]" are two.
Json several(const std::string& flag, const Json& value) {
  const KnownOption* const known = known_options("megatron").find(flag);
  if (known == nullptr || known->arity == "0" || known->arity == "1") return value;
  // "[a b]" is a list of one word to YAML.
  const bool one_word = value.is_array() && value.size() == 1 && value.front().is_string();
  if (!value.is_string() && !one_word) return value;
  std::string text = (one_word ? value.front() : value).get<std::string>();
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  Json list = Json::array();
  std::istringstream words(text);
  for (std::string word; words >> word;) list.push_back(word);
  return list;
}

// The convention of Megatron's functional tests: MODEL_ARGS maps flags to values. Mappings beside
// it (MODEL_ARGS_2, an anchor that several share) are other runs' or parts of it.
Settings flags_of(const Settings& yaml) {
  const bool first_run = yaml.has_section("MODEL_ARGS.--");
  Settings flags;
  for (const Setting& setting : yaml) {
    const std::size_t dashes = setting.key.find("--");
    if (dashes == std::string::npos) continue;
    if (first_run && !setting.key.starts_with("MODEL_ARGS.--")) continue;
    Setting flag = setting;
    flag.key = setting.key.substr(dashes);
    flag.value = several(flag.key, flag.value);
    if (text_of(flag.value).find("${") != std::string::npos) flag.resolved = false;
    // A switch that is off is not passed.
    const bool off = flag.value.is_boolean() && !flag.value.get<bool>();
    if (!off) flags.add(std::move(flag));
  }
  return flags;
}

// "--training.steps 10" as its configuration names it.
Settings torchtitan_keys(const Settings& arguments) {
  Settings keys;
  for (Setting setting : arguments) {
    if (!setting.key.starts_with("--")) continue;
    setting.key = setting.key.substr(2);
    if (setting.key.find('.') != std::string::npos) keys.add(std::move(setting));
  }
  return keys;
}

// What launchers and Trainers share; the rest is not judged.
Settings shared_with_trainers(const Settings& arguments) {
  Settings result;
  for (const Setting& setting : arguments) {
    if (setting.key.starts_with("--deepspeed") || setting.key == "--megatron_config") {
      result.add(setting);
    }
  }
  return result;
}

// Words under Megatron's flags and its relatives'.
Settings read_flags(const std::vector<ShellWord>& words, const std::string& script) {
  static const std::array<const OptionList*, 3> kLists{
      &known_options("megatron"), &known_options("slime"), &known_options("megatron_deepspeed")};
  Settings settings = read_arguments(words, kLists);
  if (dialect_of(settings, script) != Dialect::megatron_deepspeed) return settings;
  // Two flags take several values in the one and one in the other.
  static const std::array<const OptionList*, 1> kFork{&known_options("megatron_deepspeed")};
  return read_arguments(words, kFork);
}

// Python's argparse takes the beginning of a name that no other has for the whole.
std::string whole_name(const std::string& key, std::span<const OptionList* const> lists) {
  std::string found;
  for (const OptionList* const list : lists) {
    if (list->find(key) != nullptr) return key;
    for (const std::string& name : list->names()) {
      if (!key.starts_with("--") || key.size() < 5 || !name.starts_with(key)) continue;
      if (!found.empty()) return key;
      found = name;
    }
  }
  return found.empty() ? key : found;
}

// accelerate has a ParallelismConfig of its own.
bool is_of_accelerate(const std::string& program) {
  return program.find("torchtitan") == std::string::npos &&
         (program.find("from accelerate") != std::string::npos ||
          program.find("import accelerate") != std::string::npos);
}

// Whether a flag takes no value.
bool is_switch(const std::string& flag) {
  for (const std::string_view list : {"megatron", "slime", "megatron_deepspeed"}) {
    const KnownOption* const known = known_options(list).find(flag);
    if (known != nullptr) return known->arity == "0";
  }
  return false;
}

// Whether a word that only a run can tell may be arguments of its own ($GPT_ARGS): one that is no
// flag's first value.
bool has_open_words(const std::vector<ShellWord>& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].resolved || words[i].text.starts_with("--")) continue;
    const bool value = i > 0 && words[i - 1].resolved && words[i - 1].text.starts_with("-") &&
                       words[i - 1].text.find('=') == std::string::npos &&
                       !is_switch(words[i - 1].text);
    if (!value) return true;
  }
  return false;
}

// A Trainer's, which are spelled with '_' or with '-'.
Settings read_trainer_flags(const std::vector<ShellWord>& words) {
  static const std::array<const OptionList*, 2> kLists{&known_options("trainer"),
                                                       &known_options("run_clm")};
  Settings settings;
  for (Setting setting : read_arguments(words, kLists)) {
    setting.key = whole_name(setting.key, kLists);
    if (kLists.front()->find(setting.key) != nullptr && setting.key.size() > 2) {
      std::replace(setting.key.begin() + 2, setting.key.end(), '-', '_');
    }
    settings.add(std::move(setting));
  }
  return settings;
}

// How many parts at the end of two paths are the same: 0 if the files' names differ.
std::size_t folders_alike(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::size_t alike = 0;
  for (auto x = a.end(), y = b.end(); x != a.begin() && y != b.begin(); ++alike) {
    if (*--x != *--y) break;
  }
  return alike;
}

class JobReader {
 public:
  explicit JobReader(std::span<const ConfigText> files) {
    for (const ConfigText& file : files) job_.texts.push_back(file);
  }

  JobFiles read() {
    for (const ConfigText& file : job_.texts) check_is_text(file);
    const std::set<std::string> started = started_by_others();
    for (const ConfigText& file : job_.texts) {
      if (!started.contains(file.name)) read_file(file);
    }
    // Scripts that start something come first: what they source is not read a second time.
    for (const Arrays& arrays : arrays_) {
      if (sourced_.count(arrays.name) == 0) add_arguments(arrays.words, {arrays.name, 1}, "");
    }
    hand_overrides();
    merge_overridden();
    merge_inherited();
    for (std::size_t i = 0; i < job_.parts.size(); ++i) derive(i);  // which adds parts
    return std::move(job_);
  }

 private:
  // What a command says on top of the YAML that it names.
  struct Override {
    ShellWord file;
    Settings settings;
    std::string script;  // that reads both
  };

  void hand_overrides() {
    for (const Override& override : overrides_) {
      ConfigPart* best = nullptr;
      std::size_t most = 0;
      for (ConfigPart& part : job_.parts) {
        if (finetuner_of(part.dialect) == nullptr) continue;
        const std::size_t alike = folders_alike(part.place.file, override.file.text);
        if (alike <= most) continue;
        best = &part;
        most = alike;
      }
      if (best == nullptr) {
        job_.missing.push_back(override.file);
      } else {
        best->settings.append(override.settings);
        best->script = override.script;
      }
    }
  }

  // NeMo-RL's: a file on top of those that its "defaults" name, and the words of a command on top
  // of all. Of several files that nobody names the first is the job.
  void merge_inherited() {
    std::vector<ConfigPart> others, files, commands;
    for (ConfigPart& part : job_.parts) {
      auto& where = part.dialect != Dialect::nemo_rl ? others
                    : part.place.line == 0           ? files
                                                     : commands;
      where.push_back(std::move(part));
    }
    std::set<const ConfigPart*> parents;
    std::vector<Setting> missing;
    for (const ConfigPart& file : files) {
      for (const ConfigPart* const parent : parents_of(file, files, missing)) {
        parents.insert(parent);
      }
    }
    const auto child = std::find_if(files.begin(), files.end(), [&](const ConfigPart& file) {
      return parents.count(&file) == 0;
    });
    if (child != files.end()) {
      ConfigPart whole = *child;
      whole.settings = {};
      std::set<const ConfigPart*> read;
      missing.clear();
      inherit(*child, files, read, missing, whole.settings);
      note_missing_parents(missing, whole.settings);
      for (const ConfigPart& command : commands) whole.settings.append(command.settings);
      others.push_back(std::move(whole));
    } else {
      others.insert(others.end(), commands.begin(), commands.end());
    }
    job_.parts = std::move(others);
  }

  // A file that says itself who trains says the most of what is judged.
  void note_missing_parents(const std::vector<Setting>& missing, const Settings& whole) {
    if (whole.has("policy.megatron_cfg.enabled") && whole.has("cluster.num_nodes")) return;
    for (const Setting& named : missing) {
      const std::string name = text_of(named.value);
      note("config_missing", named.place,
           fmt::format("defaults names {}, which is not among the files given: what it says is not "
                       "judged",
                       shown(name)),
           fmt::format("give {} too", shown(base_name(name))));
    }
  }

  // Those among the files that "defaults" name; what is not there is added to `missing`.
  static std::vector<const ConfigPart*> parents_of(const ConfigPart& file,
                                                   const std::vector<ConfigPart>& files,
                                                   std::vector<Setting>& missing) {
    std::vector<const ConfigPart*> parents;
    const Setting* const named = file.settings.find("defaults");
    if (named == nullptr) return parents;
    for (const std::string& name : list_of(named->value)) {
      const ConfigPart* best = nullptr;
      std::size_t most = 0;
      for (const ConfigPart& other : files) {
        const std::size_t alike = folders_alike(other.place.file, name);
        if (&other == &file || alike <= most) continue;
        best = &other;
        most = alike;
      }
      if (best != nullptr) {
        parents.push_back(best);
      } else {
        missing.push_back(*named);
        missing.back().value = name;
      }
    }
    return parents;
  }

  // Parents first, for what the file says itself counts. "_override_" drops a section of theirs.
  static void inherit(const ConfigPart& file, const std::vector<ConfigPart>& files,
                      std::set<const ConfigPart*>& read, std::vector<Setting>& missing,
                      Settings& whole) {
    if (!read.insert(&file).second) return;
    for (const ConfigPart* const parent : parents_of(file, files, missing)) {
      inherit(*parent, files, read, missing, whole);
    }
    constexpr std::string_view kOverride = "_override_";
    for (const Setting& setting : file.settings) {
      if (!setting.key.ends_with(kOverride) || !same_value(setting.value, Json(true))) continue;
      const std::string section = setting.key.substr(0, setting.key.size() - kOverride.size());
      Settings kept;
      for (const Setting& old : whole) {
        if (!old.key.starts_with(section)) kept.add(old);
      }
      whole = std::move(kept);
    }
    whole.append(file.settings);
  }

  // verl's: the words of a command on top of the YAML that it may name. Of several commands the
  // first trains; the others train something else, or the same by other engines.
  void merge_overridden() {
    std::vector<ConfigPart> others;
    std::optional<ConfigPart> yaml, command;
    for (ConfigPart& part : job_.parts) {
      if (part.dialect != Dialect::verl) {
        others.push_back(std::move(part));
      } else if (part.place.line == 0) {
        if (!yaml) yaml = std::move(part);
      } else if (!command) {
        command = std::move(part);
      }
    }
    if (yaml && command) {
      yaml->settings.append(command->settings);
      yaml->place = command->place;
      command.reset();
    }
    if (yaml) others.push_back(std::move(*yaml));
    if (command) others.push_back(std::move(*command));
    job_.parts = std::move(others);
  }

  // The job that a YAML of LLaMA-Factory's or axolotl's, or ms-swift's arguments, ask for.
  void derive(std::size_t at) {
    const FineTuner* const tuner = finetuner_of(job_.parts[at].dialect);
    if (tuner == nullptr) return;
    const Place place = job_.parts[at].place;
    TrainerJob made = tuner->make(job_.parts[at].settings, place);
    const auto hand = [&](Dialect of, Settings settings) {
      if (settings.empty()) return;
      add(of, std::move(settings), place);
      job_.parts.back().derived = true;
    };
    hand(Dialect::trainer, std::move(made.trainer));
    hand(Dialect::own_script, std::move(made.own_script));
    hand(Dialect::ds_config, std::move(made.ds_config));
    hand(Dialect::accelerate, std::move(made.accelerate));
    hand(Dialect::megatron, std::move(made.megatron));
    hand(Dialect::torchtitan, std::move(made.torchtitan));
    job_.assumed.insert(job_.assumed.end(), made.assumed.begin(), made.assumed.end());
    job_.takes_less = job_.takes_less || made.takes_less;
    job_.shorter = job_.shorter || made.shorter;
  }

  // "a=b" of LLaMA-Factory's command, "--a-b c" of axolotl's.
  static Settings words_of_command(const std::vector<ShellWord>& words) {
    Settings settings;
    for (std::size_t i = 0; i < words.size(); ++i) {
      std::string key = words[i].text, value;
      const std::size_t equals = key.find('=');
      if (equals != std::string::npos) {
        value = key.substr(equals + 1);
        key.resize(equals);
      } else if (key.starts_with("--") && i + 1 < words.size() &&
                 !words[i + 1].text.starts_with("--")) {
        value = words[i + 1].text;
      } else {
        value = "true";
      }
      const bool dashes = key.starts_with("--");
      if (dashes) key.erase(0, 2);
      if (!dashes && equals == std::string::npos) continue;
      if (dashes) std::replace(key.begin(), key.end(), '-', '_');
      try {
        const std::string line = fmt::format("{}: {}", key, value);
        for (const Setting& setting : read_yaml_settings(line, "").settings) {
          settings.add({setting.key, setting.value, words[i].place, {}, {}, words[i].resolved});
        }
      } catch (const Error&) {
        settings.add({key, value, words[i].place, {}, {}, words[i].resolved});
      }
    }
    return settings;
  }

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
        return note("empty_file", whole, "the file is empty", "");
      case FileKind::prose:
        return note("prose", whole, "prose is not read: no framework reads it", "");
      case FileKind::json:
        return read_json(file.text, file.name, 1);
      case FileKind::yaml:
        return read_yaml(file);
      case FileKind::python:
        return read_python_file(file);
      case FileKind::toml:
        return refuse_toml(whole);
      case FileKind::hostfile:
        return read_hosts(file);
      case FileKind::script:
        return read_script(file);
    }
  }

  void note(std::string rule, Place place, std::string message, std::string instead) {
    job_.findings.push_back({Severity::note, std::move(rule), std::move(place), std::move(message),
                             std::move(instead), ""});
  }

  void unknown(Place place, std::string message, std::string instead) {
    job_.findings.push_back({Severity::error, "unknown_file", std::move(place), std::move(message),
                             std::move(instead), ""});
  }

  void add(Dialect dialect, Settings settings, Place place, std::string script = "") {
    job_.parts.push_back({dialect, std::move(settings), std::move(place), std::move(script)});
  }

  // ---- files of keys ----

  void read_json(const std::string& text, const std::string& name, int first_line) {
    FormatText read = read_json_settings(text, name, first_line);
    job_.findings.insert(job_.findings.end(), read.findings.begin(), read.findings.end());
    if (is_ms_swift(read.settings)) return add_swift_keys(read.settings, {name, 0});
    switch (json_kind_of(read.settings)) {
      case JsonKind::plan:
        throw Error(
            fmt::format("{} is a plan file of qplan's; `qplan predict --plan` reads it", name));
      case JsonKind::model:
        return note("model_config", {name, 0},
                    "this is the model's config.json, which --model reads",
                    fmt::format("--model {}", name));
      case JsonKind::ds_config:
        return add(Dialect::ds_config, std::move(read.settings), {name, 0});
      case JsonKind::fsdp:
        return add(Dialect::accelerate, fsdp_settings(read.settings), {name, 0});
      case JsonKind::unknown:
        return unknown({name, 0},
                       "this JSON has none of ds_config.json's keys (train_batch_size, "
                       "zero_optimization, ...)",
                       "give a ds_config.json");
    }
  }

  // The Trainer's FSDP as accelerate's yaml has it.
  static Settings fsdp_settings(const Settings& json) {
    constexpr std::string_view kSection = "fsdp_config.", kPrefix = "fsdp_";
    Settings yaml;
    yaml.add({"distributed_type", "FSDP", json.begin()->place});
    for (Setting setting : json) {
      if (!setting.key.starts_with(kSection)) continue;
      const bool named = setting.key.compare(kSection.size(), kPrefix.size(), kPrefix) == 0;
      if (!named) setting.key.insert(kSection.size(), kPrefix);
      yaml.add(std::move(setting));
    }
    return yaml;
  }

  void read_yaml(const ConfigText& file) {
    Settings settings = read_yaml_settings(file.text, file.name).settings;
    const Place whole{file.name, 0};
    if (is_verl_yaml(settings)) return add(Dialect::verl, std::move(settings), whole);
    if (is_nemo_rl_yaml(settings)) return add(Dialect::nemo_rl, std::move(settings), whole);
    if (const std::string_view tool = other_tool_of(settings); !tool.empty()) {
      return unknown(whole,
                     fmt::format("this is a configuration of {}, which is not read here", tool),
                     "give the ds_config.json that it names, or ask `qplan predict` with the same "
                     "degrees");
    }
    if (is_llama_factory(settings)) return add_llama_factory(std::move(settings), whole);
    if (is_axolotl(settings)) return add(Dialect::axolotl, std::move(settings), whole);
    if (is_trl(settings)) return add(Dialect::trl, swift_arguments(settings), whole);
    if (is_automodel(settings)) return add(Dialect::automodel, std::move(settings), whole);
    if (is_automodel_of_others(settings)) {
      return unknown(whole,
                     "this recipe of NeMo AutoModel's trains no language model, or does more than "
                     "that, which is not read here",
                     "a recipe of next-token prediction");
    }
    if (is_ms_swift(settings)) return add_swift_keys(settings, whole);
    if (is_accelerate_deepspeed(settings)) {
      return add_deepspeed_of(settings, whole);
    }
    if (is_accelerate(settings)) return add(Dialect::accelerate, std::move(settings), whole);
    Settings flags = flags_of(settings);
    if (flags.empty() && is_megatron_yaml(settings)) {
      return add(Dialect::megatron_yaml, std::move(settings), whole);
    }
    if (flags.empty()) {
      return unknown(whole,
                     "this YAML has neither accelerate's keys nor Megatron's degrees or layers",
                     "give accelerate's yaml, Megatron's arguments or the launch script");
    }
    const Dialect dialect = dialect_of(flags, "");
    add(dialect, std::move(flags), whole);
  }

  // Its files for chatting, exporting and evaluating have the same keys.
  void add_llama_factory(Settings settings, Place place) {
    const bool trains = is_switched_on(settings, "do_train");
    add(Dialect::llama_factory, std::move(settings), place);
    if (trains) return;
    unknown(std::move(place), "do_train is not true: LLaMA-Factory trains nothing by this file",
            "do_train: true, or give a configuration that trains");
  }

  void add_deepspeed_of(const Settings& accelerate, Place place) {
    if (const Setting* const named = accelerate.find("deepspeed_config.deepspeed_config_file")) {
      const std::string file = base_name(text_of(named->value));
      const bool given = std::any_of(job_.texts.begin(), job_.texts.end(), [&](const auto& text) {
        return base_name(text.name) == file;
      });
      if (given) return;  // that says it all
      note("config_missing", named->place,
           fmt::format("{} is named here and is not among the files given: what it says is not "
                       "judged",
                       shown(file)),
           fmt::format("give {} too", shown(file)));
    }
    add(Dialect::ds_config, deepspeed_settings(accelerate), std::move(place));
    job_.parts.back().of_accelerate = true;
  }

  void refuse_toml(Place place) {
    job_.findings.push_back(
        {Severity::error, "torchtitan_toml", std::move(place),
         "torchtitan reads Python functions that return Trainer.Config; its TOML files are gone "
         "since 0.2.2",
         "write a configuration function, as `qplan emit --framework torchtitan` does",
         "torchtitan b5bcd76c, torchtitan/config/manager.py"});
  }

  void read_python_file(const ConfigText& file) {
    PythonText text = read_python(file.text, file.name);
    const Place whole{file.name, 0};
    if (file.text.find("megatron.bridge") != std::string::npos) {
      PythonText one = text;
      keep_one_configuration(file, one);
      add(Dialect::bridge, bridge_settings(one), whole);
    } else if (Settings titan = torchtitan_settings(text);
               !titan.empty() && !is_of_accelerate(file.text)) {
      add(Dialect::torchtitan, std::move(titan), whole);
    }
    if (Settings own = own_script_settings(text, file); !own.empty()) {
      add(Dialect::own_script, std::move(own), whole);
    }
    if (Settings trainer = training_arguments(text); !trainer.empty()) {
      add(Dialect::trainer, std::move(trainer), whole);
    }
    job_.python.push_back(std::move(text));
  }

  // Of functions that say different things of one field, each makes a configuration of its own.
  void keep_one_configuration(const ConfigText& file, PythonText& text) {
    const std::string one = one_of_several(file.text, text);
    if (one.empty()) return;
    job_.findings.push_back(
        {Severity::note,
         "several_configurations",
         {file.name, 0},
         fmt::format("several functions make a configuration, and {}'s is judged", one),
         "give the others in files of their own, to have them judged",
         ""});
  }

  void read_hosts(const ConfigText& file) {
    const Hostfile hosts = read_hostfile(file);
    job_.host_slots = hosts.slots;
    job_.findings.insert(job_.findings.end(), hosts.findings.begin(), hosts.findings.end());
  }

  // ---- scripts ----

  // Of the files given that a script, itself apart, can mean: the one whose path ends most alike.
  FindFile finder(const std::string& reader) {
    return [this, reader](const std::string& path) -> std::optional<FoundFile> {
      const ConfigText* best = nullptr;
      std::size_t most = 0;
      for (const ConfigText& other : job_.texts) {
        const std::size_t alike = folders_alike(other.name, path);
        if (other.name == reader || alike <= most) continue;
        best = &other;
        most = alike;
      }
      if (best == nullptr) return std::nullopt;
      sourced_.insert(best->name);
      return FoundFile{best->name, best->text};
    };
  }

  void read_script(const ConfigText& file) {
    const ShellScript script = read_shell(file.text, file.name, finder(file.name));
    job_.findings.insert(job_.findings.end(), script.findings.begin(), script.findings.end());
    job_.missing.insert(job_.missing.end(), script.missing.begin(), script.missing.end());
    for (const ShellFile& written : script.files) {
      const std::size_t start = written.text.find_first_not_of(" \t\r\n");
      if (start == std::string::npos || written.text[start] != '{' || !written.resolved) continue;
      const std::size_t settings = job_.parts.size(), findings = job_.findings.size();
      read_json(written.text, written.place.file, written.place.line);
      place_in(written.span, settings, findings);
    }
    const std::size_t installs = job_.installs.size();
    bool started = false;
    for (const ShellCommand& command : script.commands) started |= read_command(command, script);
    if (started || job_.installs.size() > installs) return;
    Arrays arrays{file.name, {}};
    for (const auto& [name, words] : script.arrays) {
      arrays.words.insert(arrays.words.end(), words.begin(), words.end());
    }
    if (!arrays.words.empty()) {
      arrays_.push_back(std::move(arrays));
    } else if (const ShellWord* const swift = swift_command(script)) {
      unknown(swift->place, "ms-swift trains nothing by this command: sft, pt and rlhf do",
              "give a script that trains");
    } else if (!script.missing.empty()) {
      const std::string name = shown(base_name(script.missing.back().text));
      unknown(script.missing.back().place,
              fmt::format("{} is started here and is not among the files given", name),
              fmt::format("give {} too", name));
    } else {
      unknown({file.name, 0}, "nothing here starts a training job or lists its arguments",
              "give a launch script, an argument list, ds_config.json, accelerate's yaml or a "
              "torchtitan function");
    }
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
    }
    for (std::size_t i = findings; i < job_.findings.size(); ++i) {
      for (Edit& edit : job_.findings[i].fix) {
        edit.begin += span.begin;
        edit.end += span.begin;
      }
      if (!as_is) job_.findings[i].fix.clear();
    }
  }

  // "nsys profile ... torchrun": where the launcher stands behind a profiler, or behind what only a
  // run can tell.
  template <class Word>
  static Word behind_wrappers(Word first, Word end) {
    static constexpr std::array<std::string_view, 7> kWrappers{
        "nsys", "ncu", "numactl", "time", "timeout", "uv", ""};  // "": of an empty array
    const std::string program = base_name(first->text);
    const bool wraps = std::find(kWrappers.begin(), kWrappers.end(), program) != kWrappers.end();
    if (!wraps && first->resolved) return first;
    const Word launcher =
        std::find_if(first, end, [](const ShellWord& word) { return is_launcher(word.text); });
    return launcher == end ? first : launcher;
  }

  // "automodel x.yaml --nproc-per-node 8 --model.torch_dtype float32".
  void add_automodel(const std::vector<ShellWord>& words, const Place& place) {
    const auto yaml = std::find_if(words.begin(), words.end(), [](const ShellWord& word) {
      return word.text.ends_with(".yaml") || word.text.ends_with(".yml");
    });
    if (yaml == words.end()) return;
    Launch launch;
    launch.program = "automodel";
    launch.place = place;
    Settings settings;
    for (const Setting& setting : words_of_command({std::next(yaml), words.end()})) {
      if (setting.key != "nproc_per_node") {
        settings.add(setting);
      } else if (setting.resolved && setting.value.is_number_integer()) {
        launch.gpus_per_node = setting.value.get<std::int64_t>();
        launch.nodes = 1;
      }
    }
    job_.launches.push_back(std::move(launch));
    overrides_.push_back({*yaml, std::move(settings), ""});
  }

  static bool is_verb_of_swift(const std::string& word) {
    return word == "sft" || word == "pt" || word == "rlhf";
  }

  // A YAML's keys as arguments. Those of Ray's groups are theirs but for what trains.
  static Settings swift_arguments(const Settings& yaml) {
    constexpr std::string_view kTraining = "train.";
    Settings arguments;
    for (Setting setting : yaml) {
      if (setting.key.starts_with(kTraining)) setting.key.erase(0, kTraining.size());
      if (setting.key.find('.') != std::string::npos || setting.key == "gpus") continue;
      if (setting.key == "colocate_groups") continue;
      if (setting.value.is_object() || setting.key == "ENV" || setting.value.is_null()) continue;
      setting.key.insert(0, "--");
      arguments.add(std::move(setting));
    }
    return arguments;
  }

  void add_swift_keys(const Settings& keys, Place place) {
    const bool megatron = is_ms_swift_megatron(keys);
    add(megatron ? Dialect::ms_swift_megatron : Dialect::ms_swift, swift_arguments(keys),
        std::move(place));
  }

  // "NPROC_PER_NODE=8 megatron sft --model X": it starts torchrun by what its environment says.
  void add_swift(const ShellCommand& command, const std::string& program,
                 const std::vector<ShellWord>& words) {
    Launch launch;
    launch.program = program;
    launch.place = command.words.front().place;
    launch.environment = command.environment;
    launch.gpus_per_node = counted(command, "NPROC_PER_NODE");
    launch.nodes = counted(command, "NNODES");
    if (launch.gpus_per_node && command.environment.count("NNODES") == 0) launch.nodes = 1;
    const bool megatron = program == "megatron";
    // Set by it, where nobody else does (swift/megatron/arguments/megatron_args.py).
    if (megatron) launch.environment.emplace("CUDA_DEVICE_MAX_CONNECTIONS", "1");
    job_.launches.push_back(std::move(launch));
    add_swift_arguments(words, command.words.front().place, megatron);
  }

  static bool is_verb_of_trl(const std::string& word) {
    constexpr std::array<std::string_view, 6> kVerbs{"sft", "dpo", "grpo", "kto", "reward", "rloo"};
    return std::find(kVerbs.begin(), kVerbs.end(), word) != kVerbs.end();
  }

  // What a script around TRL trains by, if its name says so: "scripts/run_dpo.py".
  static std::string verb_of_script(const std::string& script) {
    constexpr std::array<std::string_view, 2> kPairs{"orpo", "cpo"};
    std::string word;
    for (const char c : base_name(script)) {
      if (c != '_' && c != '-' && c != '.') {
        word += c;
        continue;
      }
      const bool pairs = std::find(kPairs.begin(), kPairs.end(), word) != kPairs.end();
      if (pairs || is_verb_of_trl(word)) return word;
      word.clear();
    }
    return "";
  }

  // "scripts/sft.py --config x.yaml", "scripts/dpo.py x.yaml".
  static bool names_yaml(const std::vector<ShellWord>& words) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::string_view word = words[i].text;
      if (!word.ends_with(".yaml") && !word.ends_with(".yml")) continue;
      if (i == 0 || words[i - 1].text == "--config") return true;
    }
    return false;
  }

  // `trl VERB`, or a script around it: "trl" or the script's name.
  void add_trl(const std::string& verb, const std::vector<ShellWord>& words, const Place& place,
               const std::string& script) {
    static const std::array<const OptionList*, 2> kLists{&known_options("trl"),
                                                         &known_options("trainer")};
    Settings settings = underscored(words, kLists);
    settings.add({"verb", verb, place});
    if (const Setting* const config = settings.find("--config")) {
      const ShellWord named{text_of(config->value), config->place};
      return overrides_.push_back({named, std::move(settings), script});
    }
    if (names_yaml(words)) return overrides_.push_back({words[0], std::move(settings), script});
    add(Dialect::trl, std::move(settings), place, script);
    job_.parts.back().open = has_open_words(words);
  }

  // Arguments of transformers' parser, whose names may have either sign and be cut short.
  static Settings underscored(const std::vector<ShellWord>& words,
                              std::span<const OptionList* const> lists) {
    Settings settings;
    for (Setting setting : read_arguments(words, lists)) {
      setting.key = whole_name(setting.key, lists);
      if (setting.key.starts_with("--") && setting.key.size() > 2) {
        std::replace(setting.key.begin() + 2, setting.key.end(), '-', '_');
      }
      settings.add(std::move(setting));
    }
    return settings;
  }

  void add_swift_arguments(const std::vector<ShellWord>& words, const Place& place, bool megatron) {
    static const std::array<const OptionList*, 1> kMegatron{&known_options("ms_swift_megatron")};
    static const std::array<const OptionList*, 2> kPlain{&known_options("ms_swift"),
                                                         &known_options("trainer")};
    const auto lists = megatron ? std::span<const OptionList* const>(kMegatron)
                                : std::span<const OptionList* const>(kPlain);
    Settings settings = underscored(words, lists);
    const auto yaml = std::find_if(words.begin(), words.end(), [](const ShellWord& word) {
      return word.text.ends_with(".yaml") || word.text.ends_with(".yml");
    });
    const bool named =
        yaml != words.end() && (yaml == words.begin() || std::prev(yaml)->text == "--config");
    if (named) return overrides_.push_back({*yaml, std::move(settings), ""});
    add(megatron ? Dialect::ms_swift_megatron : Dialect::ms_swift, std::move(settings), place);
    job_.parts.back().open = has_open_words(words);
  }

  static std::optional<std::int64_t> counted(const ShellCommand& command, const char* variable) {
    const auto said = command.environment.find(variable);
    if (said == command.environment.end()) return std::nullopt;
    try {
      return whole_of(said->second, 1, 1 << 20);
    } catch (const Error&) {
      return std::nullopt;  // what only a run can tell
    }
  }

  // "megatron sft", "swift sft".
  static const ShellWord* swift_command(const ShellScript& script) {
    for (const ShellCommand& command : script.commands) {
      const std::string program = base_name(command.words.front().text);
      const bool has_verb = command.words.size() > 1 && !command.words[1].text.starts_with("-");
      if ((program == "megatron" || program == "swift") && has_verb) return &command.words.front();
    }
    return nullptr;
  }

  // Whether a word begins with a backslash of the file, or with the blank behind one. Quotes keep
  // theirs: what stands in them is an argument, however odd.
  [[nodiscard]] bool is_stray(const ShellWord& word) const {
    if (word.span.end <= word.span.begin) return false;
    const auto file = std::find_if(job_.texts.begin(), job_.texts.end(),
                                   [&](const ConfigText& f) { return f.name == word.place.file; });
    if (file == job_.texts.end()) return false;
    if (word.text == "\\") return true;  // of a value in quotes, which falls apart at its blanks
    const bool blank = word.text.starts_with(' ') || word.text.starts_with('\t');
    return blank && word.span.begin > 0 && word.span.begin < file->text.size() &&
           file->text[word.span.begin - 1] == '\\';
  }

  // Lines that were run together: "--nproc_per_node=8 \ --nnodes=2", where the backslash continues
  // nothing. Said once a command, which is then read as it was meant.
  ShellCommand without_strays(ShellCommand command) {
    std::vector<const ShellWord*> strays;
    Correction fix;
    for (const ShellWord& word : command.words) {
      if (!is_stray(word)) continue;
      strays.push_back(&word);
      const std::size_t at = word.span.begin - (word.text == "\\" ? 0 : 1);
      fix.push_back({word.place.file, at, at + 1, ""});
    }
    if (strays.empty()) return command;
    const ShellWord& first = *strays.front();
    const std::string also =
        strays.size() == 1 ? std::string()
                           : fmt::format("; so do {} more of this command", strays.size() - 1);
    job_.findings.push_back(
        {Severity::error, "stray_backslash", first.place,
         first.text == "\\"
             ? fmt::format("a backslash within a line continues nothing: it is an argument of its "
                           "own here{}",
                           also)
             : fmt::format(
                   "a backslash within a line continues nothing: the blank behind it begins "
                   "the argument {}{}",
                   shown("'" + first.text + "'"), also),
         "one option a line with the backslash last, or one line without backslashes",
         "bash(1), quoting", std::move(fix)});
    for (ShellWord& word : command.words) {
      if (!is_stray(word)) continue;
      word.text.erase(0, 1);
      ++word.span.begin;
    }
    std::erase_if(command.words, [](const ShellWord& word) {
      return word.text.empty() && word.resolved && word.span.end > 0;
    });
    return command;
  }

  // Whether it starts a job or lists its arguments.
  bool read_command(const ShellCommand& written, const ShellScript& script) {
    static constexpr std::array<std::string_view, 4> kPrefixes{"exec", "nohup", "env", "sudo"};
    const bool starts = std::any_of(written.words.begin(), written.words.end(), [](const auto& w) {
      return is_launcher(w.text) || w.text.starts_with("--");
    });
    const ShellCommand command = starts ? without_strays(written) : written;
    const auto& words = command.words;
    const auto first = std::find_if(words.begin(), words.end(), [](const ShellWord& word) {
      return std::find(kPrefixes.begin(), kPrefixes.end(), word.text) == kPrefixes.end();
    });
    if (first == words.end()) return false;
    const std::string program = base_name(first->text);
    if (program == "pip" || program == "pip3") {
      job_.installs.insert(job_.installs.end(), first, words.end());
      return false;
    }
    // "llamafactory-cli train x.yaml a=b", "axolotl train x.yaml --a b".
    const bool finetunes =
        program == "llamafactory-cli" || program == "lmf" || program == "axolotl";
    if (finetunes && words.end() - first > 2) {
      if (std::next(first)->text != "train") return false;
      add_arguments({first + 2, words.end()}, first->place, program);
      return true;
    }
    if (program == "automodel" && words.end() - first > 1) {
      add_automodel({first + 1, words.end()}, first->place);
      return true;
    }
    if (program == "trl" && words.end() - first > 2 && is_verb_of_trl(std::next(first)->text)) {
      Launch launch;
      launch.program = program;
      launch.place = first->place;
      launch.environment = command.environment;
      job_.launches.push_back(std::move(launch));
      add_trl(std::next(first)->text, {first + 2, words.end()}, first->place, program);
      return true;
    }
    const bool verb = words.end() - first > 2 && is_verb_of_swift(std::next(first)->text);
    if ((program == "megatron" || program == "swift") && verb) {
      add_swift(command, program, {first + 2, words.end()});
      return true;
    }
    // A bare argument list is a command that begins with a flag.
    if (first->text.starts_with("--")) {
      add_arguments({first, words.end()}, first->place, "");
      return true;
    }
    const auto at = static_cast<std::size_t>(behind_wrappers(first, words.end()) - words.begin());
    const auto started = read_launch(command, at, script.directives);
    if (!started) return false;
    job_.launches.push_back(started->launch);
    if (started->launch.program == "accelerate") add_accelerate(started->launch);
    add_arguments(started->arguments, started->launch.place, started->launch.script);
    return true;
  }

  // Its arguments come on top of a yaml, which says the most of what it is given with.
  void add_accelerate(const Launch& launch) {
    const Settings& options = launch.options;
    if (options.has("--config_file") || options.has("--deepspeed_config_file")) return;
    Settings settings = accelerate_of_launch(launch.options);
    if (is_accelerate_deepspeed(settings)) {
      add_deepspeed_of(settings, launch.place);
    } else if (!settings.empty()) {
      add(Dialect::accelerate, std::move(settings), launch.place);
    }
  }

  void add_arguments(const std::vector<ShellWord>& words, Place place, const std::string& script) {
    if (const std::string verb = verb_of_script(script); !verb.empty() && names_yaml(words)) {
      return add_trl(verb, words, place, base_name(script));
    }
    if (!words.empty() &&
        (words.front().text.ends_with(".yaml") || words.front().text.ends_with(".yml"))) {
      overrides_.push_back(
          {words.front(), words_of_command({words.begin() + 1, words.end()}), script});
      return;
    }
    if (is_nemo_rl(script)) {
      return add(Dialect::nemo_rl, verl_settings(words, script), std::move(place), script);
    }
    if (is_verl(words, script)) {
      if (trains_by_verl(script)) {
        return add(Dialect::verl, verl_settings(words, script), std::move(place), script);
      }
      return unknown(std::move(place), fmt::format("{} trains nothing", shown(script)),
                     "give the script that trains");
    }
    Settings settings = read_flags(words, script);
    if (settings.has("--finetuning_type")) {
      return add_llama_factory(words_of_command(words), std::move(place));
    }
    Dialect dialect = dialect_of(settings, script);
    if (dialect == Dialect::torchtitan) settings = torchtitan_keys(settings);
    const bool by_trl = std::any_of(words.begin(), words.end(), [](const ShellWord& word) {
      return word.text == "--use_peft" || word.text == "--use-peft";  // its own word for adapters
    });
    if (dialect == Dialect::trainer && by_trl) {
      const std::string verb = verb_of_script(script);
      return add_trl(verb.empty() ? "sft" : verb, words, place, base_name(script));
    }
    if (dialect == Dialect::trainer) settings = read_trainer_flags(words);
    if (dialect == Dialect::megatron && is_own_script(settings, script)) {
      dialect = Dialect::trainer;
      settings = shared_with_trainers(settings);
    }
    if (settings.empty()) return;
    add(dialect, std::move(settings), std::move(place), script);
    job_.parts.back().open = has_open_words(words);
  }

  JobFiles job_;
  std::vector<Arrays> arrays_;
  std::vector<Override> overrides_;
  std::set<std::string> sourced_;
};

}  // namespace

const ConfigPart* JobFiles::find(Dialect dialect) const {
  const auto found = std::find_if(parts.begin(), parts.end(),
                                  [&](const ConfigPart& part) { return part.dialect == dialect; });
  return found == parts.end() ? nullptr : &*found;
}

JobFiles read_job_files(std::span<const ConfigText> files) {
  return JobReader(files).read();
}

}  // namespace qplan
