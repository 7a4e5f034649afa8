#include "planner/frameworks/readers/key_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "models/error.h"
#include "planner/frameworks/deepspeed/deepspeed.h"
#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/finetuning/prime_rl.h"
#include "planner/frameworks/finetuning/trainer_fsdp.h"
#include "planner/frameworks/finetuning/trl_verb.h"
#include "planner/frameworks/option.h"
#include "planner/frameworks/readers/accelerate_keys.h"
#include "planner/frameworks/readers/foreign_files.h"
#include "planner/frameworks/readers/meant_blocks.h"
#include "planner/frameworks/readers/megatron_tree.h"
#include "planner/frameworks/readers/program_arguments.h"
#include "planner/frameworks/readers/swift_release.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

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

void add_swift_keys(const Settings& keys, Place place, GatheredJob& job) {
  const bool megatron = is_ms_swift_megatron(keys);
  job.add(megatron ? Dialect::ms_swift_megatron : Dialect::ms_swift,
          of_this_swift(swift_arguments(keys), megatron, job.findings), std::move(place));
}

// What it trains by stands in the command; without one the keys tell.
void add_trl_keys(const Settings& keys, const Place& place, GatheredJob& job) {
  Settings arguments = keys_as_arguments(keys);
  // A block is an argument too, whose name may be none of a field's.
  for (const Setting& setting : keys) {
    const std::string block = setting.key.substr(0, setting.key.find('.'));
    const std::string name = "--" + block;
    const std::array<const OptionList*, 2> lists{&known_options("trl"), &known_options("trainer")};
    const bool slip = block != setting.key && lists[0]->find(name) == nullptr &&
                      lists[1]->find(name) == nullptr && !certain_name(name, lists).empty();
    const bool dashed = block != setting.key && block.find('-') != std::string::npos;
    if ((!dashed && !slip) || arguments.has(name)) continue;
    // Its name stands in the line above its first key, mostly.
    Place above = setting.place;
    if (slip && above.line > 1) --above.line;
    arguments.add({name, Json::object(), above, {}, {}, true, {}, Syntax::yaml});
  }
  if (const std::string verb = trl_verb_of(keys); !verb.empty()) {
    arguments.add({"verb", verb, place});
  }
  job.add(Dialect::trl, std::move(arguments), place);
}

// The Trainer's FSDP as accelerate's yaml has it.
Settings fsdp_settings(const Settings& json) {
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

// Whether another file hands it to a program as Megatron's configuration, of whatever sections.
bool is_named_as_megatrons(const ConfigText& file, const std::vector<ConfigText>& texts) {
  const std::string name = base_name(file.name);
  return std::any_of(texts.begin(), texts.end(), [&](const ConfigText& other) {
    const auto says = [&](std::string_view word) {
      return other.text.find(word) != std::string::npos;
    };
    return other.name != file.name && says(name) &&
           (says("--megatron_config") || says("--yaml-cfg"));
  });
}

// Whether another file hands it to a Trainer as what FSDP is told.
bool is_named_as_fsdp(const std::string& file, const std::vector<ConfigText>& texts) {
  const std::string name = base_name(file);
  return std::any_of(texts.begin(), texts.end(), [&](const ConfigText& other) {
    const std::size_t key = other.name == file ? std::string::npos : other.text.find("fsdp_config");
    return key != std::string::npos && other.text.find(name, key) != std::string::npos;
  });
}

// Variables that stand in a section, but for those that only a run can tell.
void add_environment(const Settings& settings, std::string_view section, GatheredJob& job) {
  for (const Setting& setting : settings) {
    if (!setting.key.starts_with(section) || setting.value.is_structured()) continue;
    std::string value = text_of(setting.value);
    if (value.find('$') != std::string::npos) continue;
    job.environment.push_back(
        {setting.key.substr(section.size()), std::move(value), setting.place});
  }
}

void add_accelerate_yaml(Settings settings, std::vector<MeantBlock> meant, const Place& place,
                         GatheredJob& job) {
  const DistributedType type = distributed_type_of(settings);
  if (!type.meant.empty() && !is_read_type(type.meant)) {
    return job.unknown(type.said == nullptr ? place : type.said->place,
                       fmt::format("accelerate starts a job of distributed_type {} by this, which "
                                   "is not read here",
                                   type.meant),
                       "distributed_type: FSDP, DEEPSPEED or MULTI_GPU is read");
  }
  const bool deepspeed = type.meant == "DEEPSPEED";
  if (deepspeed) add_deepspeed_of(settings, place, job);
  job.add(Dialect::accelerate, std::move(settings), place);
  job.parts.back().of_accelerate = deepspeed;
  job.parts.back().meant_blocks = std::move(meant);
}

}  // namespace

void read_json(const std::string& text, const std::string& name, int first_line, GatheredJob& job) {
  FormatText read = read_json_settings(text, name, first_line);
  job.findings.insert(job.findings.end(), read.findings.begin(), read.findings.end());
  if (is_written_by_swift(read.settings)) {
    return job.unknown({name, 0}, "ms-swift wrote this of a run that it started: no job reads it",
                       "give the script or the YAML that started it");
  }
  if (is_of_gpt_neox(read.settings)) {
    return job.unknown(
        {name, 0}, "this is a configuration of GPT-NeoX, which is not read here",
        "give the ds_config.json that it names, or ask `qplan predict` with the same "
        "degrees");
  }
  if (is_ms_swift(read.settings)) return add_swift_keys(read.settings, {name, 0}, job);
  // accelerate's own file may be JSON, too, with the keys that its yaml has.
  if (read.settings.has("distributed_type") && is_accelerate(read.settings)) {
    auto meant = mend_block_names(read.settings, known_options("accelerate"), text);
    return add_accelerate_yaml(with_whole_names(read.settings), std::move(meant), {name, 0}, job);
  }
  switch (json_kind_of(read.settings)) {
    case JsonKind::plan:
      throw Error(
          fmt::format("{} is a plan file of qplan's; `qplan predict --plan` reads it", name));
    case JsonKind::model:
      return job.note("model_config", {name, 0},
                      "this is the model's config.json, which --model reads",
                      fmt::format("--model {}", name));
    case JsonKind::ds_config: {
      auto meant = mend_block_names(read.settings, known_options("deepspeed"), text);
      job.add(Dialect::ds_config, std::move(read.settings), {name, 0});
      job.parts.back().meant_blocks = std::move(meant);
      return;
    }
    case JsonKind::fsdp:
      return job.add(Dialect::accelerate, fsdp_settings(read.settings), {name, 0});
    case JsonKind::unknown:
      if (is_fsdp_of_trainer(read.settings) || is_named_as_fsdp(name, job.texts)) {
        job.fsdp_files.push_back({std::move(read.settings), {name, 0}});
        return;
      }
      return job.unknown({name, 0},
                         "this JSON has none of ds_config.json's keys (train_batch_size, "
                         "zero_optimization, ...)",
                         "give a ds_config.json");
  }
}

// "${LEARNING_RATE}", that a shell or another tool fills in before anybody reads the file.
Settings with_open_templates(const Settings& settings) {
  Settings open;
  for (Setting setting : settings) {
    if (setting.value.is_string() && text_of(setting.value).find("${") != std::string::npos) {
      setting.resolved = false;
    }
    open.add(std::move(setting));
  }
  return open;
}

// Megatron-Bridge's, which OmegaConf loads.
void add_bridge_yaml(BridgeYaml kind, const ConfigText& file, GatheredJob& job) {
  Settings settings = read_yaml_settings(file.text, file.name, YamlLoader::omegaconf).settings;
  const Place whole{file.name, 0};
  if (kind == BridgeYaml::whole && !settings.has_section("train.")) {
    return job.unknown(whole,
                       "Megatron-Bridge wrote this beside weights that it converted: it has no "
                       "section train, and trains nothing",
                       "the run_config.yaml of a run, or the YAML that one was started with");
  }
  BridgeSource source{{}, whole, kind};
  if (kind == BridgeYaml::overrides) {
    source.meant_blocks = mend_block_names(settings, known_options("bridge_fields"), file.text);
  }
  add_bridge_keys(kind, settings, source.text);
  job.bridge_sources.push_back(std::move(source));
}

void read_yaml(const ConfigText& file, GatheredJob& job) {
  Settings settings = read_yaml_settings(file.text, file.name).settings;
  const Place whole{file.name, 0};
  // LLaMA-Factory, verl and NeMo-RL load it by OmegaConf; NeMo AutoModel evaluates texts.
  if (is_verl_yaml(settings) || is_nemo_rl_yaml(settings) || is_llama_factory(settings) ||
      is_automodel(settings)) {
    settings = read_yaml_settings(file.text, file.name, YamlLoader::omegaconf).settings;
  }
  if (is_verl_yaml(settings)) return job.add(Dialect::verl, std::move(settings), whole);
  if (is_nemo_rl_yaml(settings)) return job.add(Dialect::nemo_rl, std::move(settings), whole);
  if (is_nanotron(settings)) {
    auto meant = mend_block_names(settings, known_options("nanotron"), file.text);
    job.add(Dialect::nanotron, with_open_templates(settings), whole);
    job.parts.back().meant_blocks = std::move(meant);
    return;
  }
  if (const std::string_view tool = other_tool_of(settings); !tool.empty()) {
    return job.unknown(
        whole, fmt::format("this is a configuration of {}, which is not read here", tool),
        "give the ds_config.json that it names, or ask `qplan predict` with the same "
        "degrees");
  }
  if (const BridgeYaml kind = bridge_yaml_of(settings); kind != BridgeYaml::none) {
    return add_bridge_yaml(kind, file, job);
  }
  if (is_llama_factory(settings)) return add_llama_factory(std::move(settings), whole, job);
  if (is_axolotl(settings)) {
    return job.add(Dialect::axolotl, with_open_templates(settings), whole);
  }
  if (is_trl(settings)) return add_trl_keys(with_open_templates(settings), whole, job);
  if (is_torchtune(settings)) return job.add(Dialect::torchtune, std::move(settings), whole);
  if (is_torchtune_of_others(settings)) {
    return job.unknown(
        whole,
        "this configuration of torchtune's trains nothing (no optimizer or no loss), "
        "or by answers that it makes, which is not read here",
        "a configuration of one of its finetune recipes");
  }
  if (is_automodel(settings)) return job.add(Dialect::automodel, std::move(settings), whole);
  if (is_automodel_of_others(settings)) {
    return job.unknown(
        whole,
        "this recipe of NeMo AutoModel's trains no language model, or does more than "
        "that, which is not read here",
        "a recipe of next-token prediction");
  }
  if (is_ms_swift(settings)) return add_swift_keys(settings, whole, job);
  if (is_accelerate(settings)) {
    auto meant = mend_block_names(settings, known_options("accelerate"), file.text);
    return add_accelerate_yaml(with_whole_names(settings), std::move(meant), whole, job);
  }
  if (is_tree_of_megatron(settings)) settings = arguments_of_tree(settings);
  Settings flags = flags_of(settings);
  const bool sizes = has_sizes_of_megatron(settings);
  if (flags.empty() && sizes &&
      (is_megatron_yaml(settings) || is_named_as_megatrons(file, job.texts))) {
    return job.add(Dialect::megatron_yaml, std::move(settings), whole);
  }
  if (flags.empty() && sizes) {
    return job.unknown(whole,
                       "this YAML has names of Megatron's among others that are not: it is another "
                       "program's, which is not read here",
                       "give Megatron's arguments, or the launch script");
  }
  if (flags.empty()) {
    return job.unknown(whole,
                       "this YAML has neither accelerate's keys nor Megatron's degrees or layers",
                       "give accelerate's yaml, Megatron's arguments or the launch script");
  }
  add_environment(settings, "ENV_VARS.", job);
  const Dialect dialect = dialect_of(flags, "");
  job.add(dialect, std::move(flags), whole);
}

namespace {

// prime-rl's, which starts torchrun by what it says itself.
void add_prime_rl(const Settings& toml, const Place& place, GatheredJob& job) {
  for (Finding& refusal : refusals_of_prime_rl(toml)) job.findings.push_back(std::move(refusal));
  TrainerJob made = job_of_prime_rl(toml, place);
  made.torchtitan.add({std::string(kPrimeRlModel), model_of_prime_rl(toml), place});
  job.add(Dialect::torchtitan, std::move(made.torchtitan), place);
  job.parts.back().derived = true;
  if (!made.own_script.empty()) {
    job.add(Dialect::own_script, std::move(made.own_script), place);
    job.parts.back().derived = true;
  }
  job.assumed.insert(job.assumed.end(), made.assumed.begin(), made.assumed.end());
  job.takes_less = job.takes_less || made.takes_less;
  job.shorter = job.shorter || made.shorter;
  const PrimeRlGpus gpus = gpus_of_prime_rl(toml);
  const Setting* said = toml.find("deployment.num_train_gpus");
  if (said == nullptr) said = toml.find("deployment.num_train_nodes");
  Launch launch;
  launch.program = "torchrun";
  launch.place = said == nullptr ? place : said->place;
  launch.nodes = gpus.nodes;
  launch.gpus_per_node = gpus.of_node;
  job.launches.push_back(std::move(launch));
}

}  // namespace

void read_toml(const ConfigText& file, GatheredJob& job) {
  FormatText read = read_toml_settings(file.text, file.name);
  if (!is_torchtitan_toml(read.settings) && is_prime_rl(read.settings)) {
    job.findings.insert(job.findings.end(), read.findings.begin(), read.findings.end());
    return add_prime_rl(read.settings, {file.name, 0}, job);
  }
  if (is_prime_rl_of_others(read.settings)) {
    return job.unknown(
        {file.name, 0},
        "this TOML of prime-rl's is of engines, environments or a trainer alone, whose batches "
        "another file says",
        "the TOML of its `sft` or `rl`");
  }
  if (!is_torchtitan_toml(read.settings)) {
    return job.unknown({file.name, 0},
                       "this TOML has none of the tables of torchtitan's job files ([model], "
                       "[training], [parallelism], ...)",
                       "give a job file of torchtitan's, or the launch script");
  }
  const Setting* const model = read.settings.find("model.name");
  if (model != nullptr && same_value(model->value, Json("flux"))) {
    return job.unknown(model->place, "flux draws images, and language models are read here alone",
                       "a job file of a language model");
  }
  job.findings.insert(job.findings.end(), read.findings.begin(), read.findings.end());
  auto meant = mend_block_names(read.settings, known_options("torchtitan_toml"), file.text);
  job.add(Dialect::torchtitan_toml, std::move(read.settings), {file.name, 0});
  job.parts.back().meant_blocks = std::move(meant);
}

void add_runtime_environment(const Setting& json, GatheredJob& job) {
  const std::string text = text_of(json.value);
  const auto refuse = [&](std::string message, std::string instead, std::string source) {
    job.findings.push_back({Severity::error,
                            "runtime_environment",
                            json.place,
                            std::move(message),
                            std::move(instead),
                            std::move(source),
                            {}});
  };
  try {
    Settings variables;
    for (Setting setting : read_json_settings(text, json.place.file).settings) {
      setting.place = json.place;
      const bool of_text = setting.value.is_string() || setting.value.is_null();
      if (setting.key.starts_with("env_vars.") && !of_text) {
        refuse(fmt::format("{} is {}, and Ray takes text alone as a variable's value",
                           setting.key.substr(std::string_view("env_vars.").size()),
                           shown(text_of(setting.value))),
               fmt::format("write \"{}\", in quotes", text_of(setting.value)),
               "Ray 2.60.0, python/ray/_private/runtime_env/validation.py:412");
      }
      variables.add(std::move(setting));
    }
    add_environment(variables, "env_vars.", job);
  } catch (const Error& error) {
    // What only a run puts into it may make it another.
    if (text.find('{') != 0 || text.find('$') != std::string::npos) return;
    const std::string why = error.what();
    refuse(fmt::format("--runtime-env-json is no JSON, and Ray stops: {}",
                       why.substr(std::min(why.find(": ") + 2, why.size()))),
           "", "Ray 2.60.0, python/ray/dashboard/modules/job/cli.py (submit)");
  }
}

void add_llama_factory(Settings settings, Place place, GatheredJob& job) {
  const bool trains = is_switched_on(settings, "do_train");
  job.add(Dialect::llama_factory, std::move(settings), place);
  if (trains) return;
  job.unknown(std::move(place), "do_train is not true: LLaMA-Factory trains nothing by this file",
              "do_train: true, or give a configuration that trains");
}

void add_deepspeed_of(const Settings& accelerate, Place place, GatheredJob& job) {
  if (const Setting* const named = accelerate.find("deepspeed_config.deepspeed_config_file")) {
    const std::string file = base_name(text_of(named->value));
    const bool given = std::any_of(job.texts.begin(), job.texts.end(),
                                   [&](const auto& text) { return base_name(text.name) == file; });
    if (given) return;  // that says it all
    job.note("config_missing", named->place,
             fmt::format("{} is named here and is not among the files given: what it says is not "
                         "judged",
                         shown(file)),
             fmt::format("give {} too", shown(file)));
  }
  job.add(Dialect::ds_config, deepspeed_settings(accelerate), std::move(place));
  job.parts.back().of_accelerate = true;
}

}  // namespace qplan
