#pragma once
// Adapters beside frozen weights (LoRA).

#include "models/parameters.h"
#include "planner/rules/rule.h"

namespace qplan::rules {

// Whether any layer of the model is one that the plan adapts.
inline bool adapts_a_layer(const Case& c) {
  return std::any_of(c.m.layers.begin(), c.m.layers.end(), [&](const LayerKind& kind) {
    return !adapters_of(parameters_of(c.m, ModelPart::decoder, kind), c.p.lora()).empty();
  });
}

inline bool adapts_experts(const Case& c) {
  return c.p.lora_rank > 0 && c.m.moe && c.p.lora().has(LoraTarget::experts);
}

inline constexpr auto kAdapters = std::to_array<Rule>({
    {"lora_words_need_rank", kEvery,
     [](const Case& c) { return c.p.lora_rank == 0 && !c.p.lora_targets.empty(); },
     [](const Case&) {
       return std::string(
           "lora_targets say where adapters stand, and there are none; give a "
           "lora_rank, or leave lora_targets out");
     },
     "arithmetic: no rank, no adapters"},
    {"lora_adapts_a_layer", kEvery,
     [](const Case& c) { return c.p.lora_rank > 0 && !adapts_a_layer(c); },
     [](const Case& c) {
       return fmt::format(
           "{} has no layer that lora_targets name; nothing would be trained; use "
           "lora_targets all-linear",
           c.m.name);
     },
     "peft 0.19, tuners/tuners_utils.py: target modules not found in the base model"},
    {"lora_overlap_tp", kEvery,
     [](const Case& c) { return c.p.lora_rank > 0 && c.p.overlap.has(OverlapKind::tp); },
     [](const Case&) {
       return std::string(
           "adapters read a layer's whole input, which overlap tp brings in pieces; "
           "leave tp out of overlap");
     },
     "qplan: models/program/layer_context.cpp; overlapped products with adapters are not modelled"},
    {"lora_vision", set_of(RecipeKind::qplan),
     [](const Case& c) { return c.p.lora_rank > 0 && c.m.vision.has_value(); },
     [](const Case& c) {
       return not_in(c, "adapters beside a vision tower", "predict it as fsdp2 or megatron");
     },
     "qplan: its executor trains vision towers, and does not pass them frozen"},
    {"lora_experts_etp", set_of(RecipeKind::qplan),
     [](const Case& c) { return adapts_experts(c) && c.p.etp > 1; },
     [](const Case& c) { return not_in(c, "adapters of experts that etp splits", "use etp 1"); },
     "qplan: models/program/state_builder.cpp sums parts of gradients over tp alone"},
    {"lora_fp8", set_of(RecipeKind::qplan),
     [](const Case& c) { return c.p.lora_rank > 0 && c.p.precision == Precision::fp8; },
     [](const Case& c) { return not_in(c, "adapters beside fp8 products", "use bf16"); },
     "qplan: models/program/fp8_linear.cpp has no adapters"},
});

}  // namespace qplan::rules
