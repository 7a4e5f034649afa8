#include "planner/frameworks/megatron/bridge_adapters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "planner/frameworks/megatron/bridge_modules.h"
#include "planner/frameworks/megatron/megatron.h"

namespace qplan {
namespace {

LoraTargets wanted_of(const Lora& lora, LoraTargets among) {
  return (lora.targets.empty() ? all_linear() : lora.targets) & among;
}

constexpr auto kFlaglessOptions = std::to_array<Option>({
    {"peft", "dora", [](const Subject&) { return Json(nullptr); },
     [](Draft& d, const Json& v) { d.plan.dora = text_of(v) == "DoRA"; }},
    {"peft.dim", "lora_rank",
     [](const Subject& s) { return if_true(s.plan.lora_rank > 0, s.plan.lora_rank); },
     set_degree<&ParallelPlan::lora_rank>},
    {"peft.alpha", "lora_alpha",
     [](const Subject& s) { return if_true(s.plan.lora_rank > 0, s.plan.lora_alpha); },
     [](Draft& d, const Json& v) {
       d.plan.lora_alpha = static_cast<int>(whole_of(v, 1, kMaxCount));
     }},
    {"peft.dropout", "lora_dropout",
     [](const Subject& s) { return if_true(s.plan.lora_rank > 0, s.plan.lora_dropout); },
     [](Draft& d, const Json& v) { d.plan.lora_dropout = number_of(v); }},
    {"peft.a2a_experimental", "lora_a2a",
     [](const Subject& s) { return if_true(s.plan.lora_rank > 0 && s.plan.lora_a2a, true); },
     [](Draft& d, const Json& v) { d.plan.lora_a2a = truth_of(v); }},
    {"peft.target_modules", "lora_targets", target_modules,
     [](Draft& d, const Json& v) { d.adapted_modules = list_of(v); }},
    {kFp8Attention, "fp8_dot_product_attention",
     [](const Subject& s) { return if_true(s.plan.fp8_dot_product_attention, true); },
     [](Draft& d, const Json& v) { d.plan.fp8_dot_product_attention = truth_of(v); }},
});

}  // namespace

std::span<const Option> bridge_options() {
  static const auto* const options = [] {
    auto* all = new std::vector<Option>;
    for (const Option& option : megatron_options()) all->push_back(option);
    for (const Option& option : kFlaglessOptions) all->push_back(option);
    return all;
  }();
  return *options;
}

// A module's name reaches all of that name, in a vision tower and among experts, too; a pattern
// reaches those whose full names it matches. One name for all, where all are meant.
Json target_modules(const Subject& s) {
  if (s.plan.lora_rank == 0) return nullptr;
  const Lora lora = s.plan.lora();
  const std::string_view root = s.model.vision ? "*language_model.*" : "*";
  Json list = Json::array();
  const auto add = [&](const std::string& pattern) {
    if (std::find(list.begin(), list.end(), pattern) == list.end()) list.push_back(pattern);
  };
  const auto modules = megatron_modules();
  for (const AdaptedModule& module : modules) {
    if (wanted_of(lora, targets_in(module, s.model)).empty()) continue;
    const bool all = std::all_of(modules.begin(), modules.end(), [&](const AdaptedModule& other) {
      const LoraTargets present = targets_in(other, s.model);
      return other.name != module.name || present.empty() || !wanted_of(lora, present).empty();
    });
    if (all && !s.model.vision) {
      add(std::string(module.name));
    } else if (all) {
      add(fmt::format("{}.{}", root, module.name));
    } else {
      add(fmt::format("{}.{}.{}", root, module.inside, module.name));
    }
  }
  return list;
}

bool bridge_says_targets(const ModelSpec& model, const Lora& lora) {
  const auto modules = megatron_modules();
  return lora.rank == 0 ||
         std::all_of(modules.begin(), modules.end(), [&](const AdaptedModule& module) {
           const LoraTargets present = targets_in(module, model);
           const LoraTargets wanted = wanted_of(lora, present);
           return wanted.empty() || wanted == present;
         });
}

std::vector<std::string> adaptable_modules() {
  return module_names(/*canonical=*/false);
}

std::string bridge_adapters(const Subject& s) {
  std::vector<std::string> quoted;
  for (const Json& name : target_modules(s)) quoted.push_back('"' + name.get<std::string>() + '"');
  const double dropout = s.plan.lora_dropout;
  return fmt::format(
      "{}(\n        target_modules=[{}],\n        dim={},\n        alpha={},\n"
      "        dropout={},\n{}    )",
      s.plan.dora ? "DoRA" : "LoRA", fmt::join(quoted, ", "), s.plan.lora_rank, s.plan.lora_alpha,
      dropout == 0 ? "0.0" : fmt::format("{}", dropout),
      s.plan.lora_a2a ? "        a2a_experimental=True,\n" : "");
}

void settle_adapters(Draft& draft, const ModelSpec& model) {
  ParallelPlan& plan = draft.plan;
  if (plan.lora_rank == 0) {
    plan.dora = false;
    return;
  }
  if (plan.dora) plan.lora_dropout = 0;  // as finding dora_dropout says
  LoraTargets wanted, partly;
  for (const AdaptedModule& module : megatron_modules()) {
    const LoraTargets present = targets_in(module, model);
    const LoraTargets taken = targets_named(module, draft.adapted_modules) & present;
    wanted = wanted | taken;
    partly = partly | (present - taken);
  }
  // What one module of several of a kind has no adapters of, the plan has none of.
  wanted = wanted - partly;
  if (wanted.empty()) plan.lora_rank = 0, plan.dora = false;
  plan.lora_targets = wanted == (all_linear() & targets_of(model)) ? LoraTargets{} : wanted;
}

}  // namespace qplan
