#include "planner/frameworks/readers/layers.h"

#include <fmt/format.h>

#include <algorithm>
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

// A file that says itself who trains says the most of what is judged.
void note_missing_parents(const std::vector<Setting>& missing, const Settings& whole,
                          GatheredJob& job) {
  if (whole.has("policy.megatron_cfg.enabled") && whole.has("cluster.num_nodes")) return;
  for (const Setting& named : missing) {
    const std::string name = text_of(named.value);
    job.note(
        "config_missing", named.place,
        fmt::format("defaults names {}, which is not among the files given: what it says is not "
                    "judged",
                    shown(name)),
        fmt::format("give {} too", shown(base_name(name))));
  }
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
