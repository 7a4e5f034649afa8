#include "planner/frameworks/readers/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/error.h"
#include "planner/frameworks/finetuning/finetuners.h"
#include "planner/frameworks/finetuning/trainer_fsdp.h"
#include "planner/frameworks/readers/alike_paths.h"
#include "planner/frameworks/rl/verl_keys.h"

namespace qplan {
namespace {

void hand_overrides(GatheredJob& job) {
  for (const YamlOverride& override : job.overrides) {
    ConfigPart* const named =
        most_alike(std::span(job.parts), override.file.text, [](const ConfigPart& part) {
          return finetuner_of(part.dialect) == nullptr ? std::string() : part.place.file;
        });
    if (named == nullptr) {
      job.missing.push_back(override.file);
    } else {
      named->settings.append(override.settings);
      named->script = override.script;
    }
  }
}

// Those among the files that "defaults" name; what is not there is added to `missing`.
std::vector<const ConfigPart*> parents_of(const ConfigPart& file,
                                          const std::vector<ConfigPart>& files,
                                          std::vector<Setting>& missing) {
  std::vector<const ConfigPart*> parents;
  const Setting* const named = file.settings.find("defaults");
  if (named == nullptr) return parents;
  for (const std::string& name : list_of(named->value)) {
    const ConfigPart* const parent =
        most_alike(std::span(files), name, [&](const ConfigPart& other) {
          return &other == &file ? std::string() : other.place.file;
        });
    if (parent != nullptr) {
      parents.push_back(parent);
    } else {
      missing.push_back(*named);
      missing.back().value = name;
    }
  }
  return parents;
}

// Parents first, for what the file says itself counts. "_override_" drops a section of theirs.
void inherit(const ConfigPart& file, const std::vector<ConfigPart>& files,
             std::set<const ConfigPart*>& read, std::vector<Setting>& missing, Settings& whole) {
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

// Of several files that nobody names the first is the job; null: there is none.
const ConfigPart* child_among(const std::vector<ConfigPart>& files) {
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
  return child == files.end() ? nullptr : &*child;
}

// Without these of NeMo-RL's keys a plan would be made of its defaults in the parent's place.
constexpr auto kDecideNemo = std::to_array<std::string_view>(
    {"policy.train_global_batch_size", "policy.train_micro_batch_size",
     "policy.max_total_sequence_length", "policy.sequence_packing.enabled",
     "policy.dynamic_batching.enabled", "cluster.num_nodes", "cluster.gpus_per_node"});
constexpr auto kDecideMegatron = std::to_array<std::string_view>(
    {"enabled", "tensor_model_parallel_size", "pipeline_model_parallel_size",
     "context_parallel_size", "sequence_parallel", "activation_checkpointing",
     "optimizer.use_distributed_optimizer"});
constexpr auto kDecideShards = std::to_array<std::string_view>(
    {"enabled", "tensor_parallel_size", "context_parallel_size", "sequence_parallel",
     "activation_checkpointing", "cpu_offload"});
bool says_all(const Settings& settings, std::string_view section,
              std::span<const std::string_view> keys) {
  return std::all_of(keys.begin(), keys.end(), [&](std::string_view key) {
    return settings.has(std::string(section) + std::string(key));
  });
}

// What decides a plan stands in the files that are there, as in those that `emit` writes.
bool says_all_of_nemo(const Settings& whole) {
  const Setting* const megatron = whole.find("policy.megatron_cfg.enabled");
  const bool by_megatron = megatron != nullptr && same_value(megatron->value, Json(true));
  return says_all(whole, "", kDecideNemo) &&
         (by_megatron ? says_all(whole, "policy.megatron_cfg.", kDecideMegatron)
                      : says_all(whole, "policy.dtensor_cfg.", kDecideShards));
}

void note_missing_parents(const std::vector<Setting>& missing, const Settings& whole,
                          GatheredJob& job) {
  if (says_all_of_nemo(whole)) return;
  for (const Setting& named : missing) {
    const std::string name = text_of(named.value);
    job.note(
        "config_missing", named.place,
        fmt::format("defaults names {}, which is not among the files given: what it says is not "
                    "known, and no plan is made of NeMo-RL's defaults in its place",
                    shown(name)),
        fmt::format("give {} too", shown(base_name(name))));
  }
}

// The configuration that a command names, and that is neither verl's own nor given.
void note_missing_config(const ConfigPart& command, GatheredJob& job) {
  constexpr auto kOwn = std::to_array<std::string_view>(
      {"ppo_trainer", "ppo_megatron_trainer", "sft_trainer", "sft_trainer_engine", "generation",
       "evaluation"});  // verl/trainer/config
  const Setting* const named = command.settings.find("--config-name");
  if (named == nullptr || !named->resolved || !named->value.is_string()) return;
  const std::string name = text_of(named->value);
  const std::string bare = name.substr(0, name.find('.'));
  const bool of_verl =
      verl::program_of(command.settings).find("verl.trainer.") != std::string::npos;
  if (!of_verl || std::find(kOwn.begin(), kOwn.end(), bare) != kOwn.end()) {
    return;
  }
  job.note("config_missing", named->place,
           fmt::format("--config-name names {}, which is not among the files given: what it says "
                       "is not known, and no plan is made of verl's defaults in its place",
                       shown(name)),
           fmt::format("give {}.yaml too", shown(bare)));
}

// NeMo-RL's: a file on top of those that its "defaults" name, and the words of a command on top
// of all.
void merge_inherited(GatheredJob& job) {
  std::vector<ConfigPart> others, files, commands;
  for (ConfigPart& part : job.parts) {
    auto& where = part.dialect != Dialect::nemo_rl ? others
                  : part.place.line == 0           ? files
                                                   : commands;
    where.push_back(std::move(part));
  }
  if (const ConfigPart* const child = child_among(files)) {
    ConfigPart whole = *child;
    whole.settings = {};
    std::set<const ConfigPart*> read;
    std::vector<Setting> missing;
    inherit(*child, files, read, missing, whole.settings);
    note_missing_parents(missing, whole.settings, job);
    for (const ConfigPart& command : commands) whole.settings.append(command.settings);
    others.push_back(std::move(whole));
  } else {
    others.insert(others.end(), commands.begin(), commands.end());
  }
  job.parts = std::move(others);
}

// verl's: the words of a command on top of the YAML that it may name. Of several commands the
// first trains; the others train something else, or the same by other engines.
void merge_overridden(GatheredJob& job) {
  std::vector<ConfigPart> others;
  std::optional<ConfigPart> yaml, command;
  for (ConfigPart& part : job.parts) {
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
  if (command) note_missing_config(*command, job);
  if (yaml) others.push_back(std::move(*yaml));
  if (command) others.push_back(std::move(*command));
  job.parts = std::move(others);
}

// Whether these are arguments of a Trainer's own, or of TRL's around one.
bool reads_fsdp_file(const ConfigPart& part) {
  return !part.derived && (part.dialect == Dialect::trainer || part.dialect == Dialect::trl);
}

// Files that a Trainer's --fsdp_config names, as keys of its own.
void merge_fsdp_files(GatheredJob& job) {
  for (const TrainerFile& file : job.fsdp_files) {
    const auto reader = std::find_if(job.parts.begin(), job.parts.end(), [&](const auto& part) {
      const Setting* const named = part.settings.find("--fsdp_config");
      return reads_fsdp_file(part) && named != nullptr &&
             (!named->resolved || base_name(text_of(named->value)) == base_name(file.place.file));
    });
    if (reader == job.parts.end()) {
      job.unknown(file.place,
                  "a Trainer reads this by --fsdp_config, and none that is given names it",
                  "give the script that starts it");
      continue;
    }
    for (Setting setting : file.settings) {
      setting.key.insert(0, kTrainersFsdp);
      reader->settings.add(std::move(setting));
    }
  }
}

// What a Trainer hands to accelerate.
void derive_fsdp(std::size_t at, GatheredJob& job) {
  const ConfigPart& part = job.parts[at];
  if (!reads_fsdp_file(part) || !part.settings.has_section(kTrainersFsdp)) return;
  Settings yaml = accelerate_of_trainer(part.settings);
  if (yaml.empty()) return;
  job.add(Dialect::accelerate, std::move(yaml), Place(part.place));
  job.parts.back().derived = true;
}

// The job that a YAML of LLaMA-Factory's or axolotl's, or ms-swift's arguments, ask for.
void derive(std::size_t at, GatheredJob& job) {
  derive_fsdp(at, job);
  const FineTuner* const tuner = finetuner_of(job.parts[at].dialect);
  if (tuner == nullptr) return;
  const Place place = job.parts[at].place;
  TrainerJob made = tuner->make(job.parts[at].settings, place);
  const auto hand = [&](Dialect of, Settings settings) {
    if (settings.empty()) return;
    job.add(of, std::move(settings), place);
    job.parts.back().derived = true;
  };
  hand(Dialect::trainer, std::move(made.trainer));
  hand(Dialect::own_script, std::move(made.own_script));
  hand(Dialect::ds_config, std::move(made.ds_config));
  hand(Dialect::accelerate, std::move(made.accelerate));
  hand(Dialect::megatron, std::move(made.megatron));
  hand(Dialect::torchtitan, std::move(made.torchtitan));
  job.assumed.insert(job.assumed.end(), made.assumed.begin(), made.assumed.end());
  job.takes_less = job.takes_less || made.takes_less;
  job.shorter = job.shorter || made.shorter;
}

}  // namespace

void put_together(GatheredJob& job) {
  hand_overrides(job);
  merge_overridden(job);
  merge_inherited(job);
  merge_fsdp_files(job);
  for (std::size_t i = 0; i < job.parts.size(); ++i) derive(i, job);  // which adds parts
}

std::vector<ConfigPart> derived_again(std::vector<ConfigPart> parts) {
  GatheredJob job;
  std::erase_if(parts, [](const ConfigPart& part) { return part.derived; });
  job.parts = std::move(parts);
  for (std::size_t i = 0; i < job.parts.size(); ++i) derive(i, job);
  return std::move(job.parts);
}

}  // namespace qplan
