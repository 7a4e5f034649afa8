#include "planner/frameworks/deepspeed/check_parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "models/edit_distance.h"
#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/option_names.h"
#include "planner/frameworks/spelled_values.h"

namespace qplan {
namespace {

using enum Severity;

// What a constructor takes by name; what it has no default for stands first.
struct Constructor {
  std::string_view type;
  std::string_view needed, others;
  std::string_view source;
};

constexpr auto kSchedules = std::to_array<Constructor>({
    {"LRRangeTest", "",
     "lr_range_test_min_lr lr_range_test_step_size lr_range_test_step_rate lr_range_test_staircase "
     "last_batch_iteration",
     "DeepSpeed edaa7221, deepspeed/runtime/lr_schedules.py:327"},
    {"OneCycle", "cycle_min_lr cycle_max_lr",
     "decay_lr_rate cycle_first_step_size cycle_second_step_size cycle_first_stair_count "
     "cycle_second_stair_count decay_step_size cycle_momentum cycle_min_mom cycle_max_mom "
     "decay_mom_rate last_batch_iteration",
     "DeepSpeed edaa7221, deepspeed/runtime/lr_schedules.py:458"},
    {"WarmupLR", "",
     "warmup_min_lr warmup_max_lr warmup_num_steps warmup_type last_batch_iteration",
     "DeepSpeed edaa7221, deepspeed/runtime/lr_schedules.py:700"},
    {"WarmupDecayLR", "total_num_steps",
     "warmup_min_lr warmup_max_lr warmup_num_steps warmup_type last_batch_iteration",
     "DeepSpeed edaa7221, deepspeed/runtime/lr_schedules.py:789"},
    {"WarmupCosineLR", "total_num_steps",
     "warmup_min_ratio warmup_num_steps cos_min_ratio warmup_type last_batch_iteration",
     "DeepSpeed edaa7221, deepspeed/runtime/lr_schedules.py:840"},
});

// DeepSpeed's own, of the GPU and of the host, and torch's in their place, together
// (engine.py:2079-2200, _configure_basic_optimizer).
constexpr std::string_view kAdam =
    "lr bias_correction betas eps weight_decay amsgrad set_grad_none torch_adam adam_w_mode "
    "fp32_optimizer_states foreach maximize capturable differentiable fused decoupled_weight_decay";
constexpr auto kOptimizers = std::to_array<Constructor>({
    {"adam", "", kAdam, "DeepSpeed edaa7221, deepspeed/ops/adam/fused_adam.py:76"},
    {"adamw", "", kAdam, "DeepSpeed edaa7221, deepspeed/ops/adam/fused_adam.py:76"},
    {"lamb", "",
     "lr bias_correction betas eps eps_inside_sqrt weight_decay max_coeff min_coeff amsgrad",
     "DeepSpeed edaa7221, deepspeed/ops/lamb/fused_lamb.py:41"},
    {"lion", "", "lr betas weight_decay set_grad_none fp32_optimizer_states",
     "DeepSpeed edaa7221, deepspeed/ops/lion/fused_lion.py:36"},
    {"adagrad", "",
     "lr eps weight_decay amsgrad fp32_optimizer_states lr_decay initial_accumulator_value foreach "
     "maximize differentiable fused",
     "DeepSpeed edaa7221, deepspeed/ops/adagrad/cpu_adagrad.py:14"},
    {"onebitadam", "",
     "lr freeze_step bias_correction betas eps eps_inside_sqrt weight_decay amsgrad cuda_aware "
     "comm_backend_name",
     "DeepSpeed edaa7221, deepspeed/runtime/fp16/onebit/adam.py:46"},
    {"zerooneadam", "",
     "lr bias_correction betas eps eps_inside_sqrt weight_decay var_freeze_step var_update_scaler "
     "local_step_scaler local_step_clipper amsgrad cuda_aware comm_backend_name",
     "DeepSpeed edaa7221, deepspeed/runtime/fp16/onebit/zoadam.py:58"},
    {"onebitlamb", "",
     "lr freeze_step bias_correction betas eps eps_inside_sqrt weight_decay max_coeff min_coeff "
     "amsgrad cuda_aware comm_backend_name coeff_beta factor_max factor_min factor_threshold",
     "DeepSpeed edaa7221, deepspeed/runtime/fp16/onebit/lamb.py:62"},
    {"muon", "", "lr momentum weight_decay muon_lr ns_method betas eps adam_lr",
     "DeepSpeed edaa7221, deepspeed/runtime/engine.py:2213"},
});

// Names that other libraries have for the same.
constexpr std::array<std::array<std::string_view, 2>, 4> kOtherNames{
    {{"learning_rate", "lr"},
     {"epsilon", "eps"},
     {"wd", "weight_decay"},
     {"warmup_steps", "warmup_num_steps"}}};

std::vector<std::string> names_listed(std::string_view list) {
  std::vector<std::string> words;
  std::istringstream text{std::string(list)};
  for (std::string word; text >> word;) words.push_back(word);
  return words;
}

std::vector<std::string> parameters_of(const Constructor& constructor) {
  std::vector<std::string> taken = names_listed(constructor.needed);
  for (std::string& name : names_listed(constructor.others)) taken.push_back(std::move(name));
  std::sort(taken.begin(), taken.end());
  return taken;
}

// Empty: none of the names is plainly meant.
std::string meant_parameter(const std::string& name, const std::vector<std::string>& taken) {
  const auto takes = [&](std::string_view other) {
    return std::find(taken.begin(), taken.end(), other) != taken.end();
  };
  for (const auto& [other, real] : kOtherNames) {
    if (name == other && takes(real)) return std::string(real);
  }
  const std::string near = nearest_name(name, taken);
  return !near.empty() && edit_distance(name, near) <= 2 && near.size() > 4 ? near : "";
}

// Null: DeepSpeed hands it on to a class of torch's, or has none of that name.
const Constructor* constructor_of(const ConfigPart& part, std::string_view block) {
  const Setting* const type = part.settings.find(std::string(block) + ".type");
  if (type == nullptr || !type->resolved || !type->value.is_string()) return nullptr;
  const bool optimizer = block == "optimizer";
  const std::string name = optimizer ? lower_case(text_of(type->value)) : text_of(type->value);
  const std::span<const Constructor> all = optimizer ? std::span<const Constructor>(kOptimizers)
                                                     : std::span<const Constructor>(kSchedules);
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Constructor& c) { return c.type == name; });
  return found == all.end() ? nullptr : &*found;
}

void check_parameter_names(const Scene& scene, const ConfigPart& part, std::string_view block,
                           const Constructor& constructor, Findings& out) {
  const std::string section = fmt::format("{}.params.", block);
  const std::vector<std::string> taken = parameters_of(constructor);
  const std::string type = text_of(part.settings.find(std::string(block) + ".type")->value);
  for (const Setting& setting : part.settings) {
    if (!setting.key.starts_with(section) || part.settings.find(setting.key) != &setting) continue;
    const std::string name = setting.key.substr(section.size());
    const bool known = std::find(taken.begin(), taken.end(), name) != taken.end();
    if (known || name.find('.') != std::string::npos) continue;
    if (block == "optimizer" && name == "max_grad_norm") continue;  // a trap of its own
    const bool ignored = constructor.type == "muon";
    Finding finding{ignored ? warning : error,
                    "unknown_parameter",
                    setting.place,
                    fmt::format("{} takes no {}, and {}", type, shown(name),
                                ignored ? "DeepSpeed leaves it out silently" : "Python stops"),
                    fmt::format("leave it out; {} takes {}", type, fmt::join(taken, ", ")),
                    std::string(constructor.source),
                    {}};
    if (const std::string meant = meant_parameter(name, taken); !meant.empty()) {
      finding.instead = fmt::format("did you mean {}?", meant);
      finding.fix = with_key(scene, part, setting, section + meant);
    }
    out.push_back(std::move(finding));
  }
}

void check_needed_parameters(const ConfigPart& part, std::string_view block,
                             const Constructor& constructor, Findings& out) {
  const Setting& type = *part.settings.find(std::string(block) + ".type");
  for (const std::string& name : names_listed(constructor.needed)) {
    if (part.settings.has(fmt::format("{}.params.{}", block, name))) continue;
    out.push_back({error,
                   "option_needs",
                   type.place,
                   fmt::format("{} has no default of {}, and Python stops without it",
                               text_of(type.value), name),
                   fmt::format("\"{}\": NUMBER in {}.params", name, block),
                   std::string(constructor.source),
                   {}});
  }
}

// Of these two DeepSpeed itself only warns, and goes on with another schedule.
void check_warmup(const ConfigPart& part, const Constructor& constructor, Findings& out) {
  const auto said = [&](std::string_view name) {
    const Setting* const found = part.settings.find(fmt::format("scheduler.params.{}", name));
    const bool known = found != nullptr && found->resolved && text_of(found->value) != "auto";
    return known && !found->value.is_null() ? found : nullptr;
  };
  if (!constructor.type.starts_with("Warmup")) return;
  const Setting* const type = said("warmup_type");
  if (type != nullptr && !same_value(type->value, "log") && !same_value(type->value, "linear")) {
    out.push_back({warning,
                   "warmup_type",
                   type->place,
                   fmt::format("warmup_type {} is none that DeepSpeed has: it takes log",
                               shown(text_of(type->value))),
                   "log or linear",
                   "DeepSpeed edaa7221, deepspeed/runtime/lr_schedules.py:721",
                   {}});
  }
  const Setting *const total = said("total_num_steps"), *const warmup = said("warmup_num_steps");
  if (total == nullptr) return;
  try {
    const double steps = warmup == nullptr ? 1000 : number_of(warmup->value);  // its default
    if (number_of(total->value) >= steps) return;
    out.push_back(
        {warning,
         "warmup_beyond_end",
         total->place,
         fmt::format("total_num_steps {} ends before warmup_num_steps {}{}: the rate never "
                     "gets to its highest",
                     text_of(total->value), steps, warmup == nullptr ? ", the default" : ""),
         "fewer warmup_num_steps",
         "DeepSpeed edaa7221, deepspeed/runtime/lr_schedules.py:801",
         {}});
  } catch (const Error&) {
    return;  // what is no number is said elsewhere
  }
}

}  // namespace

namespace {

// Texts among numbers, but for those that a Trainer fills in. (Numbers in quotes are found as
// such.)
void check_parameter_numbers(const ConfigPart& part, std::string_view block, Findings& out) {
  constexpr std::array<std::string_view, 13> kNumbers{"lr",
                                                      "eps",
                                                      "weight_decay",
                                                      "momentum",
                                                      "warmup_min_lr",
                                                      "warmup_max_lr",
                                                      "warmup_num_steps",
                                                      "total_num_steps",
                                                      "warmup_min_ratio",
                                                      "cos_min_ratio",
                                                      "cycle_min_lr",
                                                      "cycle_max_lr",
                                                      "freeze_step"};
  const std::string section = fmt::format("{}.params.", block);
  for (const Setting& setting : part.settings) {
    if (!setting.key.starts_with(section) || !setting.resolved) continue;
    const std::string name = setting.key.substr(section.size());
    const bool number = std::find(kNumbers.begin(), kNumbers.end(), name) != kNumbers.end();
    const std::string text = text_of(setting.value);
    if (!number || !setting.value.is_string() || text == "auto" || is_number(text)) continue;
    out.push_back({error,
                   "refused_value",
                   setting.place,
                   fmt::format("{} is {}, and must be a number", setting.key, shown(text)),
                   "a number, or \"auto\" where a Trainer fills it in",
                   "DeepSpeed edaa7221, deepspeed/runtime/lr_schedules.py",
                   {}});
  }
}

// Words of DeepSpeed's warm-up for a schedule of torch's, whose class takes none of them.
void check_schedule_of_torch(const ConfigPart& part, Findings& out) {
  const Setting* const type = part.settings.find("scheduler.type");
  if (type == nullptr || !type->resolved || constructor_of(part, "scheduler") != nullptr) return;
  for (const Setting& setting : part.settings) {
    if (!setting.key.starts_with("scheduler.params.warmup_")) continue;
    out.push_back({error,
                   "unknown_parameter",
                   setting.place,
                   fmt::format("{}: {} is no schedule of DeepSpeed's, and torch's class takes no "
                               "such parameter",
                               setting.key, shown(text_of(type->value))),
                   "WarmupLR, WarmupDecayLR or WarmupCosineLR, which warm up",
                   "DeepSpeed edaa7221, deepspeed/runtime/engine.py:1604",
                   {}});
    return;
  }
}

// Steps of a schedule, of which there is one at least.
void check_steps(const ConfigPart& part, Findings& out) {
  struct Steps {
    std::string_view key, source;
  };
  constexpr auto kSteps = std::to_array<Steps>({
      {"scheduler.params.warmup_num_steps",
       "DeepSpeed edaa7221, deepspeed/runtime/lr_schedules.py:709"},
      {"scheduler.params.lr_range_test_step_size",
       "DeepSpeed edaa7221, deepspeed/runtime/lr_schedules.py:346"},
      {"scheduler.params.cycle_first_step_size",
       "DeepSpeed edaa7221, deepspeed/runtime/lr_schedules.py:502"},
  });
  for (const Steps& steps : kSteps) {
    const Setting* const said = part.settings.find(steps.key);
    if (said == nullptr || !said->resolved || !said->value.is_number()) continue;
    if (said->value.get<double>() > 0) continue;
    out.push_back({error,
                   "refused_value",
                   said->place,
                   fmt::format("{} is {}, and must be above 0: the schedule stops the job when it "
                               "is built",
                               steps.key, text_of(said->value)),
                   "1, which is as good as none",
                   std::string(steps.source),
                   {}});
  }
}

// Parameters of nothing: DeepSpeed makes what "type" says.
void check_type_is_said(const ConfigPart& part, std::string_view block, Findings& out) {
  const std::string section = fmt::format("{}.", block);
  if (!part.settings.has_section(section) || part.settings.has(section + "type")) return;
  const auto first =
      std::find_if(part.settings.begin(), part.settings.end(),
                   [&](const Setting& setting) { return setting.key.starts_with(section); });
  out.push_back({error,
                 "option_needs",
                 first->place,
                 fmt::format("{} has no type: DeepSpeed makes none of it", block),
                 block == "optimizer" ? "\"type\": \"AdamW\"" : "\"type\": \"WarmupLR\"",
                 "DeepSpeed edaa7221, deepspeed/runtime/config.py (get_optimizer_name)",
                 {}});
}

}  // namespace

bool has_degrees_alone(const ConfigPart& part) {
  return std::all_of(part.settings.begin(), part.settings.end(), [](const Setting& setting) {
    return setting.key == "sequence_parallel_size" || setting.key == "tensor_parallel.autotp_size";
  });
}

void check_parameters(const Scene& scene, const ConfigPart& part, Findings& out) {
  check_steps(part, out);
  check_schedule_of_torch(part, out);
  for (const std::string_view block : {"optimizer", "scheduler"}) {
    check_parameter_numbers(part, block, out);
    check_type_is_said(part, block, out);
    const Constructor* const constructor = constructor_of(part, block);
    if (constructor == nullptr) continue;
    check_parameter_names(scene, part, block, *constructor, out);
    check_needed_parameters(part, block, *constructor, out);
    if (block == "scheduler") check_warmup(part, *constructor, out);
  }
}

}  // namespace qplan
