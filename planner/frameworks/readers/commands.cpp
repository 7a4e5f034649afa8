#include "planner/frameworks/readers/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "models/error.h"
#include "planner/frameworks/aliases.h"
#include "planner/frameworks/finetuning/openrlhf.h"
#include "planner/frameworks/megatron/bridge.h"
#include "planner/frameworks/megatron/bridge_keys.h"
#include "planner/frameworks/readers/dashes.h"
#include "planner/frameworks/readers/key_files.h"
#include "planner/frameworks/readers/other_programs.h"
#include "planner/frameworks/readers/program_arguments.h"
#include "planner/frameworks/readers/stray_backslashes.h"
#include "planner/frameworks/readers/swift_release.h"
#include "planner/frameworks/readers/wrappers.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/frameworks/slips.h"
#include "planner/frameworks/torch/torch.h"

namespace qplan {
namespace {

constexpr std::array<std::string_view, 6> kVerbsOfTrl{"sft", "dpo",    "grpo",
                                                      "kto", "reward", "rloo"};
constexpr std::array<std::string_view, 3> kVerbsOfSwift{"sft", "pt", "rlhf"};

// A command from its program on, of one word at least.
struct ProgramCommand {
  const ShellCommand& whole;         // with its environment
  std::span<const ShellWord> words;  // its name first
  std::string program;               // its name, without folders
};

auto first_yaml(std::span<const ShellWord> words) {
  return std::find_if(words.begin(), words.end(),
                      [](const ShellWord& word) { return is_yaml_name(word.text); });
}

// What a script around TRL trains by, if its name says so: "scripts/run_dpo.py".
std::string verb_of_script(const std::string& script) {
  constexpr std::array<std::string_view, 2> kPairs{"orpo", "cpo"};
  std::string word;
  for (const char c : base_name(script) + ".") {
    if (c != '_' && c != '-' && c != '.') {
      word += c;
      continue;
    }
    if (is_among(kPairs, word) || is_among(kVerbsOfTrl, word)) return word;
    word.clear();
  }
  return "";
}

// An argument, or a slip of one, that TRL has and neither a Trainer nor run_clm.py.
bool is_word_of_trl(const std::string& key) {
  const OptionList &trl = known_options("trl"), &trainer = known_options("trainer"),
                   &script = known_options("run_clm");
  const auto ours = [&](const std::string& name) {
    return trl.find(name) != nullptr && trainer.find(name) == nullptr &&
           script.find(name) == nullptr;
  };
  if (trl.find(key) != nullptr || trainer.find(key) != nullptr || script.find(key) != nullptr) {
    return ours(key);
  }
  if (alias_of(Dialect::trl, key) != nullptr) return true;
  const std::array<const OptionList*, 2> lists{&trl, &trainer};
  return ours(certain_name(key, lists));
}

// A script of that name in a package of one's own ("src/open_r1/grpo.py") is another.
std::string name_beside_trl(const std::string& script) {
  const std::size_t slash = script.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : script.substr(0, slash);
  const std::string name = base_name(folder);
  const bool examples = name.empty() || name == "scripts" || name == "." || name == "trl";
  return examples ? base_name(script) : name + "/" + base_name(script);
}

// TRL's own scripts, by their folder or module; and whatever is called as they are ("sft.py") and
// given arguments that only they have.
bool is_script_of_trl(const std::string& script) {
  return script.find("trl/scripts/") != std::string::npos || script.starts_with("trl.scripts.");
}
bool is_called_as_trls(const std::string& verb, std::span<const ShellWord> words,
                       const std::string& script) {
  if (verb.empty()) return false;
  if (is_script_of_trl(script)) return true;
  if (base_name(script) != verb + ".py") return false;
  const Settings arguments = read_trl_arguments(words);
  return arguments.has("--model_name_or_path") &&
         std::any_of(arguments.begin(), arguments.end(),
                     [](const Setting& s) { return is_word_of_trl(s.key); });
}

// `trl VERB`, or a script around it: "trl" or the script's name.
void add_trl(const std::string& verb, std::span<const ShellWord> words, const Place& place,
             const std::string& script, GatheredJob& job) {
  Settings settings = read_trl_arguments(words);
  settings.add({"verb", verb, place});
  if (const Setting* const config = settings.find("--config")) {
    const ShellWord named{text_of(config->value), config->place};
    return job.overrides.push_back({named, std::move(settings), script});
  }
  if (names_yaml(words)) return job.overrides.push_back({words[0], std::move(settings), script});
  job.add(Dialect::trl, std::move(settings), place, script);
  job.parts.back().open_word = open_word(words);
}

void add_openrlhf(const std::string& verb, std::span<const ShellWord> words, const Place& place,
                  const std::string& script, GatheredJob& job) {
  const bool again = std::any_of(job.parts.begin(), job.parts.end(), [](const ConfigPart& part) {
    return part.dialect == Dialect::openrlhf;
  });
  if (again) {
    return job.note("several_configurations", place,
                    fmt::format("train_{} starts here behind another of OpenRLHF's programs, which "
                                "is judged alone",
                                verb),
                    "give each in a file of its own, to have it judged");
  }
  Settings settings = read_openrlhf_arguments(words);
  settings.add({"verb", verb, place});
  job.add(Dialect::openrlhf, std::move(settings), place, script);
  job.parts.back().open_word = open_word(words);
}

// "run_grpo.py --config x.yaml a.b=c", whose name TRL's scripts may have too: by its words, or by
// what the YAML that it names holds.
bool is_nemo_rl_command(std::span<const ShellWord> words, const std::string& script,
                        const GatheredJob& job) {
  if (!is_nemo_rl(script)) return false;
  return std::any_of(words.begin(), words.end(), [&](const ShellWord& word) {
    const bool overrides =
        !word.text.starts_with('-') &&
        word.text.substr(0, word.text.find('=')).find('.') < word.text.find('=') &&
        word.text.find('=') != std::string::npos;
    if (overrides || !is_yaml_name(word.text)) return overrides;
    const std::string name = base_name(word.text);
    return std::any_of(job.texts.begin(), job.texts.end(), [&](const ConfigText& text) {
      return base_name(text.name) == name && text.text.find("\npolicy:") != std::string::npos;
    });
  });
}

bool read_trl(const ProgramCommand& command, GatheredJob& job) {
  Launch launch;
  launch.program = command.program;
  launch.place = command.words.front().place;
  launch.environment = command.whole.environment;
  job.launches.push_back(std::move(launch));
  add_trl(command.words[1].text, command.words.subspan(2), command.words.front().place,
          command.program, job);
  return true;
}

// A program among the files that is Megatron-Bridge's, and merges what its command says.
bool is_bridge_program(const std::string& script, const GatheredJob& job) {
  const std::string name = base_name(script);
  return std::any_of(job.texts.begin(), job.texts.end(), [&](const ConfigText& file) {
    return base_name(file.name) == name && file.text.find("megatron.bridge") != std::string::npos &&
           merges_overrides(file.text);
  });
}

std::optional<std::int64_t> counted(const ShellCommand& command, const char* variable) {
  const auto said = command.environment.find(variable);
  if (said == command.environment.end()) return std::nullopt;
  try {
    return whole_of(said->second, 1, 1 << 20);
  } catch (const Error&) {
    return std::nullopt;  // what only a run can tell
  }
}

// A YAML among them, of the words or behind --config, holds the rest.
void add_swift_arguments(std::span<const ShellWord> words, const Place& place, bool megatron,
                         GatheredJob& job) {
  Settings settings = of_this_swift(read_swift_arguments(words, megatron), megatron, job.findings);
  const auto yaml = first_yaml(words);
  const bool named =
      yaml != words.end() && (yaml == words.begin() || std::prev(yaml)->text == "--config");
  if (named) return job.overrides.push_back({*yaml, std::move(settings), ""});
  job.add(megatron ? Dialect::ms_swift_megatron : Dialect::ms_swift, std::move(settings), place);
  job.parts.back().open_word = open_word(words);
}

// "NPROC_PER_NODE=8 megatron sft --model X": it starts torchrun by what its environment says.
bool read_swift(const ProgramCommand& command, GatheredJob& job) {
  Launch launch;
  launch.program = command.program;
  launch.place = command.whole.words.front().place;
  launch.environment = command.whole.environment;
  launch.gpus_per_node = counted(command.whole, "NPROC_PER_NODE");
  launch.nodes = counted(command.whole, "NNODES");
  if (launch.gpus_per_node && launch.environment.count("NNODES") == 0) launch.nodes = 1;
  const bool megatron = command.program == "megatron";
  // Set by it, where nobody else does (swift/megatron/arguments/megatron_args.py).
  if (megatron) launch.environment.emplace("CUDA_DEVICE_MAX_CONNECTIONS", "1");
  job.launches.push_back(std::move(launch));
  add_swift_arguments(command.words.subspan(2), command.whole.words.front().place, megatron, job);
  return true;
}

// "automodel x.yaml --nproc-per-node 8 --model.torch_dtype float32".
bool read_automodel(const ProgramCommand& command, GatheredJob& job) {
  const auto words = command.words.subspan(1);
  const auto yaml = first_yaml(words);
  if (yaml == words.end()) return true;
  Launch launch;
  launch.program = command.program;
  launch.place = command.words.front().place;
  Settings settings;
  for (const Setting& setting : words_of_command({std::next(yaml), words.end()})) {
    if (setting.key != "nproc_per_node") {
      settings.add(setting);
    } else if (setting.resolved && setting.value.is_number_integer()) {
      launch.gpus_per_node = setting.value.get<std::int64_t>();
      launch.nodes = 1;
    }
  }
  job.launches.push_back(std::move(launch));
  job.overrides.push_back({*yaml, std::move(settings), ""});
  return true;
}

// Behind FORCE_TORCHRUN it starts torchrun by what its environment says (LLaMA-Factory ff6d4d12,
// src/llamafactory/launcher.py).
void add_llama_launch(const ProgramCommand& command, GatheredJob& job) {
  Launch launch;
  launch.program = command.program;
  launch.place = command.words.front().place;
  launch.environment = command.whole.environment;
  launch.gpus_per_node = counted(command.whole, "NPROC_PER_NODE");
  launch.nodes = counted(command.whole, "NNODES");
  if (launch.gpus_per_node && launch.environment.count("NNODES") == 0) launch.nodes = 1;
  job.launches.push_back(std::move(launch));
}

// "llamafactory-cli train x.yaml a=b", "axolotl train x.yaml --a b -- --nproc_per_node 8".
bool read_finetuner(const ProgramCommand& command, GatheredJob& job) {
  if (command.words[1].text != "train") return false;
  const auto all = command.words.subspan(2);
  const auto dashes =
      std::find_if(all.begin(), all.end(), [](const ShellWord& word) { return word.text == "--"; });
  const Place place = command.words.front().place;
  if (command.program != "axolotl") {
    add_llama_launch(command, job);
  } else if (dashes != all.end()) {
    const bool torch = std::any_of(all.begin(), dashes,
                                   [](const ShellWord& word) { return word.text == "torchrun"; });
    job.launches.push_back(
        launch_of_options(torch ? "torchrun" : "accelerate", {dashes, all.end()}, place));
  }
  add_arguments({all.begin(), dashes}, place, command.program, job);
  return true;
}

// "tune run --nproc_per_node 8 full_finetune_distributed --config x.yaml batch_size=4"; a name
// without ending is a configuration of torchtune's own ("llama3/8B_full"), which `tune cp` copies.
bool read_tune(const ProgramCommand& command, GatheredJob& job) {
  const auto words = command.words.subspan(2);
  const auto recipe = std::find_if(words.begin(), words.end(), [](const ShellWord& word) {
    return word.text.ends_with("_distributed") || word.text.ends_with("_single_device") ||
           word.text.ends_with(".py");
  });
  const auto flag = std::find_if(recipe, words.end(),
                                 [](const ShellWord& word) { return word.text == "--config"; });
  if (flag == words.end() || std::next(flag) == words.end()) return false;
  Launch launch = launch_of_options("torchrun", {words.begin(), recipe}, words.front().place);
  if (recipe->text.ends_with("_single_device")) launch.processes = 1;
  launch.environment = command.whole.environment;
  job.launches.push_back(std::move(launch));
  ShellWord config = *std::next(flag);
  if (!is_yaml_name(config.text)) config.text += ".yaml";
  job.overrides.push_back({config, words_of_command({flag + 2, words.end()}), ""});
  return true;
}

bool read_install(const ProgramCommand& command, GatheredJob& job) {
  job.installs.insert(job.installs.end(), command.words.begin(), command.words.end());
  return false;
}

// A program that is no launcher: what it is asked for, and what reads that.
struct Program {
  std::string_view name;
  std::size_t words;                                  // of the command, at least
  std::span<const std::string_view> verbs;            // behind its name; empty: any
  bool (*read)(const ProgramCommand&, GatheredJob&);  // whether it starts a job
};

constexpr std::array<std::string_view, 1> kVerbsOfTune{"run"};

constexpr std::array<Program, 10> kPrograms{{
    {"pip", 1, {}, read_install},
    {"pip3", 1, {}, read_install},
    {"llamafactory-cli", 3, {}, read_finetuner},
    {"lmf", 3, {}, read_finetuner},
    {"axolotl", 3, {}, read_finetuner},
    {"automodel", 2, {}, read_automodel},
    {"tune", 4, kVerbsOfTune, read_tune},
    {"trl", 3, kVerbsOfTrl, read_trl},
    {"megatron", 3, kVerbsOfSwift, read_swift},
    {"swift", 3, kVerbsOfSwift, read_swift},
}};

// Null: it is another program, or asked for something else.
const Program* program_of(const ProgramCommand& command) {
  const auto found = std::find_if(kPrograms.begin(), kPrograms.end(), [&](const Program& row) {
    return row.name == command.program && command.words.size() >= row.words &&
           (row.verbs.empty() || is_among(row.verbs, command.words[1].text));
  });
  return found == kPrograms.end() ? nullptr : &*found;
}

// Its arguments come on top of a yaml, which says the most of what it is given with.
void add_accelerate(const Launch& launch, GatheredJob& job) {
  const Settings& options = launch.options;
  if (options.has("--config_file") || options.has("--deepspeed_config_file")) return;
  Settings settings = accelerate_of_launch(launch.options);
  if (is_accelerate_deepspeed(settings)) {
    add_deepspeed_of(settings, launch.place, job);
  } else if (!settings.empty()) {
    job.add(Dialect::accelerate, std::move(settings), launch.place);
  }
}

bool read_launcher(const ProgramCommand& command, const std::vector<ShellWord>& directives,
                   GatheredJob& job) {
  if (std::vector<ShellWord> plain = without_uv(command.words); !plain.empty()) {
    const ShellCommand whole{std::move(plain), command.whole.environment};
    return read_launcher({whole, whole.words, "python"}, directives, job);
  }
  const std::size_t before = command.whole.words.size() - command.words.size();
  const auto started =
      read_launch(command.whole, before + behind_wrappers(command.words), directives);
  if (!started) return false;
  job.launches.push_back(started->launch);
  const Setting* runtime = started->launch.options.find("--runtime-env-json");
  if (started->launch.program == "ray") find_lost_dashes(command.words, job.findings);
  if (started->launch.program == "ray" && runtime != nullptr) {
    add_runtime_environment(*runtime, job);
  }
  if (started->launch.program == "accelerate") add_accelerate(started->launch, job);
  add_arguments(started->arguments, started->launch.place, started->launch.script, job);
  return true;
}

}  // namespace

void add_arguments(const std::vector<ShellWord>& words, Place place, const std::string& script,
                   GatheredJob& job) {
  if (is_of_easy_r1(words, script)) {
    return job.unknown(std::move(place), "this starts EasyR1, which is not read here",
                       "give a job of verl's own verl.trainer.main_ppo");
  }
  // "python -m llamafactory.cli train x.yaml".
  if ((script == "llamafactory.cli" || script == "llamafactory.launcher") && words.size() > 1 &&
      words.front().text == "train") {
    return add_arguments({words.begin() + 1, words.end()}, std::move(place), "llamafactory-cli",
                         job);
  }
  if (const std::string verb = openrlhf_verb_of(script); !verb.empty()) {
    return add_openrlhf(verb, words, place, script, job);
  }
  const std::string verb_of_trl = verb_of_script(script);
  if (!verb_of_trl.empty() && names_yaml(words) && !is_nemo_rl_command(words, script, job)) {
    return add_trl(verb_of_trl, words, place, is_script_of_trl(script) ? "trl" : base_name(script),
                   job);
  }
  if (!words.empty() && !words.front().text.starts_with('-') && is_yaml_name(words.front().text)) {
    job.overrides.push_back(
        {words.front(), words_of_command({words.begin() + 1, words.end()}), script});
    return;
  }
  if (is_nemo_rl(script)) {
    return job.add(Dialect::nemo_rl, verl_settings(words, script), std::move(place), script);
  }
  if (is_verl(words, script)) {
    if (trains_by_verl(script)) {
      return job.add(Dialect::verl, verl_settings(words, script), std::move(place), script);
    }
    return job.unknown(std::move(place), fmt::format("{} trains nothing", shown(script)),
                       "give the script that trains");
  }
  if (is_of_bridge(words, script) || is_bridge_program(script, job)) {
    BridgeWords read = bridge_words(words, script);
    job.findings.insert(job.findings.end(), read.findings.begin(), read.findings.end());
    // What starts one process here asks the cluster for all of them.
    const bool starts = !job.launches.empty() && job.launches.back().place.file == place.file &&
                        job.launches.back().place.line == place.line;
    if (read.gpus && starts) job.launches.back().processes = read.gpus;
    job.gpu = read.gpu;
    BridgeSource source{std::move(read.text), std::move(place), BridgeYaml::none, read.yaml,
                        script};
    job.bridge_sources.push_back(std::move(source));
    return;
  }
  if (is_called_as_trls(verb_of_trl, words, script)) {
    return add_trl(verb_of_trl, words, place,
                   is_script_of_trl(script) ? "trl" : name_beside_trl(script), job);
  }
  Settings settings = read_flags(words, script);
  if (settings.has("--finetuning_type")) {
    return add_llama_factory(words_of_command(words), std::move(place), job);
  }
  Dialect dialect = dialect_of(settings, script);
  const Setting* toml = settings.find("--job.config_file");
  if (toml == nullptr) toml = settings.find("--job.config-file");
  if (toml != nullptr && !toml->value.is_boolean()) {  // of torchtitan's releases that read TOML
    const ShellWord named{text_of(toml->value), toml->place};
    return job.overrides.push_back({named, titan_toml_keys(settings), script});
  }
  if (dialect == Dialect::torchtitan) {
    const Setting* const function = settings.find("--config");
    if (function != nullptr && function->resolved) {
      job.functions.push_back({text_of(function->value), function->place});
    }
    settings = torchtitan_keys(settings);
  }
  const bool by_trl = std::any_of(words.begin(), words.end(), [](const ShellWord& word) {
    return word.text == "--use_peft" || word.text == "--use-peft";  // its own word for adapters
  });
  if (dialect == Dialect::trainer && by_trl) {
    return add_trl(verb_of_trl.empty() ? "sft" : verb_of_trl, words, place, base_name(script), job);
  }
  if (dialect == Dialect::trainer) settings = read_trainer_flags(words);
  if (dialect == Dialect::megatron && is_own_script(settings, script)) {
    dialect = Dialect::trainer;
    settings = shared_with_trainers(settings);
  }
  if (settings.empty()) return;
  if (dialect == Dialect::megatron && trains_nothing(script)) {
    return job.unknown(std::move(place), fmt::format("{} trains nothing", shown(base_name(script))),
                       "give the script that trains");
  }
  job.add(dialect, std::move(settings), std::move(place), script);
  job.parts.back().open_word = open_word(words);
}

bool read_command(const ShellCommand& written, const std::vector<ShellWord>& directives,
                  GatheredJob& job) {
  const bool starts = std::any_of(written.words.begin(), written.words.end(), [](const auto& w) {
    return is_launcher(w.text) || w.text.starts_with("--");
  });
  ShellCommand whole = starts ? without_strays(written, job.texts, job.findings) : written;
  if (starts) whole.words = with_two_dashes(std::move(whole.words), job.findings);
  const auto words = behind_prefixes(whole.words);
  if (words.empty()) return false;
  const ProgramCommand command{whole, words, base_name(words.front().text)};
  if (const Program* const program = program_of(command)) return program->read(command, job);
  // A bare argument list is a command that begins with a flag.
  if (words.front().text.starts_with("--")) {
    add_arguments({words.begin(), words.end()}, words.front().place, "", job);
    return true;
  }
  return read_launcher(command, directives, job);
}

const ShellWord* swift_command(const ShellScript& script) {
  for (const ShellCommand& command : script.commands) {
    const std::string program = base_name(command.words.front().text);
    const bool has_verb = command.words.size() > 1 && !command.words[1].text.starts_with("-");
    if ((program == "megatron" || program == "swift") && has_verb) return &command.words.front();
  }
  return nullptr;
}

}  // namespace qplan
