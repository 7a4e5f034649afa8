#include "planner/frameworks/job_framework.h"

#include <algorithm>

#include "planner/frameworks/readers/own_script.h"

namespace qplan {

std::optional<Framework> framework_of(const JobFiles& files) {
  const auto has = [&](Dialect dialect) { return files.find(dialect) != nullptr; };
  if (has(Dialect::verl)) return Framework::verl;
  if (has(Dialect::nemo_rl)) return Framework::nemo_rl;
  if (has(Dialect::slime)) return Framework::slime;
  const bool megatron = has(Dialect::megatron) || has(Dialect::megatron_yaml);
  if (has(Dialect::megatron_deepspeed) || (has(Dialect::ds_config) && megatron)) {
    return Framework::megatron_deepspeed;
  }
  if (has(Dialect::nanotron)) return Framework::nanotron;
  if (has(Dialect::bridge)) return Framework::megatron_bridge;
  if (has(Dialect::torchtitan)) return Framework::torchtitan;
  if (megatron) return Framework::megatron;
  if (has(Dialect::ds_config)) return Framework::deepspeed;
  if (has(Dialect::accelerate) || wraps_model(files)) return Framework::fsdp2;
  if (has(Dialect::trainer)) {
    const ConfigPart* const part = files.find(Dialect::trainer);
    if (part->settings.has("--deepspeed")) return Framework::deepspeed;
    if (part->settings.has("--per_device_train_batch_size") || part->settings.has("--fsdp")) {
      return Framework::fsdp2;
    }
  }
  return std::nullopt;
}

std::optional<Framework> named_by(const JobFiles& files) {
  const bool swift =
      files.find(Dialect::ms_swift) != nullptr || files.find(Dialect::ms_swift_megatron) != nullptr;
  if (files.find(Dialect::automodel) != nullptr) return Framework::automodel;
  if (files.find(Dialect::trl) != nullptr) return Framework::trl;
  return swift ? std::optional(Framework::ms_swift) : std::nullopt;
}

bool wraps_model(const JobFiles& files) {
  return std::any_of(files.parts.begin(), files.parts.end(), [](const ConfigPart& part) {
    return part.dialect == Dialect::own_script && !wrapper_of(part.settings).empty();
  });
}

}  // namespace qplan
