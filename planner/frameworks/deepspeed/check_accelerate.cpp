#include "planner/frameworks/deepspeed/check_accelerate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "planner/frameworks/deepspeed/deepspeed.h"

namespace qplan {
namespace {

// What accelerate takes from the ds_config.json alone, once one is named, and stops at in its own
// yaml (utils/dataclasses.py, _deepspeed_config_checks).
constexpr std::array<std::string_view, 9> kOfTheFile{"deepspeed_config.gradient_accumulation_steps",
                                                     "deepspeed_config.gradient_clipping",
                                                     "deepspeed_config.zero_stage",
                                                     "deepspeed_config.offload_optimizer_device",
                                                     "deepspeed_config.offload_param_device",
                                                     "deepspeed_config.offload_param_nvme_path",
                                                     "deepspeed_config.offload_optimizer_nvme_path",
                                                     "deepspeed_config.zero3_save_16bit_model",
                                                     "mixed_precision"};

bool starts_with_option(const Scene& scene, std::string_view name) {
  return std::any_of(
      scene.files.launches.begin(), scene.files.launches.end(), [&](const Launch& launch) {
        return launch.program == "accelerate" && launch.options.has(std::string(name));
      });
}

// Whether the ds_config.json says the same: then nothing is lost without the key.
bool is_said_by_file(const Scene& scene, const Setting& setting) {
  const ConfigPart* const file = scene.files.find(Dialect::ds_config);
  if (file == nullptr || file->of_accelerate) return false;
  Settings one;
  one.add(setting);
  for (const Setting& as_file : deepspeed_settings(one)) {
    const bool same_place =
        as_file.place.file == setting.place.file && as_file.place.line == setting.place.line;
    const Setting* const said = file->settings.find(as_file.key);
    if (same_place && said != nullptr && same_value(said->value, as_file.value)) return true;
  }
  return false;
}

}  // namespace

void check_deepspeed_file(const Scene& scene, Findings& out) {
  for (const ConfigPart& part : scene.files.parts) {
    if (part.dialect != Dialect::accelerate || part.derived || !has_names_alone(part)) continue;
    const bool named = part.settings.has("deepspeed_config.deepspeed_config_file") ||
                       starts_with_option(scene, "--deepspeed_config_file");
    if (!named) continue;
    for (const std::string_view key : kOfTheFile) {
      const Setting* const said = part.settings.find(key);
      if (said == nullptr || said->value.is_null()) continue;
      // Of a command it is no word of the file.
      if (key == "mixed_precision" && starts_with_option(scene, "--mixed_precision")) continue;
      Correction fix = is_said_by_file(scene, *said) ? removed(scene, part, *said) : Correction{};
      if (fix.empty() && fix.why_not.empty()) {
        fix.why_not = "the ds_config.json does not say the same";
      }
      out.push_back(
          {Severity::error, "options_exclude", said->place,
           fmt::format("{} stands beside deepspeed_config_file, and accelerate stops: the file "
                       "alone says it",
                       key.substr(key.rfind('.') + 1)),  // npos + 1: it stands outermost
           "leave it out, and say it in the ds_config.json",
           "accelerate 16cb6eb8, src/accelerate/utils/dataclasses.py:1525", std::move(fix)});
    }
  }
}

}  // namespace qplan
