// nanotron's YAML: keys without a default, stages of its data, names of older releases.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>

#include "models/ascii.h"
#include "planner/frameworks/finetuning/trap.h"
#include "planner/frameworks/pretraining/pretraining.h"

namespace qplan {
namespace {

using enum Severity;
using Case = FineTuningCase;

constexpr std::string_view kNanoConfig = "nanotron 2411b022, src/nanotron/config/";

// Without these dacite stops, where their section is there; "": wherever.
struct NeededKey {
  std::string_view section, key, file;
};
constexpr auto kNeeded = std::to_array<NeededKey>({
    {"", "general.project", "config.py"},
    {"", "parallelism.dp", "parallelism_config.py"},
    {"", "parallelism.pp", "parallelism_config.py"},
    {"", "parallelism.tp", "parallelism_config.py"},
    {"", "model.model_config", "config.py"},
    {"", "model.init_method", "config.py"},
    {"tokens", "tokens.sequence_length", "config.py"},
    {"tokens", "tokens.train_steps", "config.py"},
    {"tokens", "tokens.micro_batch_size", "config.py"},
    {"tokens", "tokens.batch_accumulation_per_replica", "config.py"},
    {"checkpoints", "checkpoints.checkpoints_path", "config.py"},
    {"checkpoints", "checkpoints.checkpoint_interval", "config.py"},
    {"optimizer", "optimizer.optimizer_factory", "config.py"},
    {"optimizer", "optimizer.zero_stage", "config.py"},
    {"optimizer", "optimizer.weight_decay", "config.py"},
    {"optimizer", "optimizer.accumulate_grad_in_fp32", "config.py"},
    {"optimizer", "optimizer.learning_rate_scheduler", "config.py"},
    {"optimizer.learning_rate_scheduler", "optimizer.learning_rate_scheduler.learning_rate",
     "config.py"},
});

// Of releases before 0.5 Adam's numbers stand in the optimizer itself.
bool is_of_old_optimizer(const Settings& yaml, std::string_view key) {
  return key == "optimizer.optimizer_factory" && yaml.has("optimizer.adam_eps");
}

bool has_anything(const Settings& yaml, std::string_view key) {
  const std::string name(key);
  return yaml.has(name) || yaml.has_section(name + ".");
}

void check_needed(const ConfigPart& part, Findings& out) {
  for (const NeededKey& needed : kNeeded) {
    const Settings& yaml = part.settings;
    const bool asked =
        needed.section.empty() || yaml.has_section(std::string(needed.section) + ".");
    if (!asked || has_anything(yaml, needed.key) || is_of_old_optimizer(yaml, needed.key)) continue;
    // Beside the first key of its section.
    const std::string section(needed.key.substr(0, needed.key.rfind('.') + 1));
    const auto first = std::find_if(yaml.begin(), yaml.end(), [&](const Setting& setting) {
      return setting.key.starts_with(section);
    });
    Correction none;
    none.why_not = "its value is for whoever wrote the file to say";
    out.push_back({error, "missing_option", first == yaml.end() ? part.place : first->place,
                   fmt::format("{} is missing, and nanotron stops: it has no default", needed.key),
                   fmt::format("add {}", needed.key),
                   std::string(kNanoConfig) + std::string(needed.file), std::move(none)});
  }
}

void note_old_keys(const ConfigPart& part, Findings& out) {
  note_older(
      part, known_options("nanotron_older"), "today's nanotron",
      [](const std::string&) { return std::string(); }, out);
}

// "data_stages.0.start_training_step" and its like, by stage.
void check_stages(const ConfigPart& part, Findings& out) {
  constexpr std::string_view kStages = "data_stages.";
  const auto source = std::string(kNanoConfig) + "config.py (data_stages)";
  std::map<std::string, std::string> names, steps;  // what is said, and by which stage
  bool begins = false;
  const Setting* first = nullptr;
  for (const Setting& setting : part.settings) {
    if (!setting.key.starts_with(kStages)) continue;
    const std::string rest = setting.key.substr(kStages.size());
    const std::string index = rest.substr(0, rest.find('.'));
    const std::string name = rest.substr(std::min(rest.size(), index.size() + 1));
    if (index.empty() || !is_digit(index[0])) continue;
    const std::string value = text_of(setting.value);
    if (name == "start_training_step") {
      if (first == nullptr) first = &setting;
      begins = begins || value == "1";
    }
    if (name != "start_training_step" && name != "name") continue;
    auto& said = name == "name" ? names : steps;
    if (said.emplace(value, index).second) continue;
    out.push_back({error, "data_stages", setting.place,
                   fmt::format("two stages of data_stages have the {} {}, and nanotron stops",
                               name == "name" ? "name" : "start_training_step", shown(value)),
                   "another one for each stage", source});
  }
  if (first != nullptr && !begins) {
    out.push_back({error, "data_stages", first->place,
                   "no stage of data_stages has start_training_step 1, and nanotron stops",
                   "start_training_step: 1 for the first", source});
  }
}

}  // namespace

void check_nanotron(const Scene& scene, Findings& out) {
  for (const ConfigPart& part : scene.files.parts) {
    if (part.dialect != Dialect::nanotron) continue;
    check_needed(part, out);
    note_old_keys(part, out);
    check_stages(part, out);
  }
}

}  // namespace qplan
