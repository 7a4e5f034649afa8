// Plans that qplan writes no Megatron-Bridge program for.

#include <fmt/format.h>

#include <array>
#include <string>

#include "planner/frameworks/megatron/bridge.h"
#include "planner/frameworks/megatron/bridge_adapters.h"

namespace qplan {
namespace {

constexpr auto kBridgeLimits = std::to_array<Limit>({
    {"bridge_recipe", [](const Subject& s) { return bridge_recipe(s.model.name) == nullptr; },
     [](const Subject& s) {
       return fmt::format("Megatron-Bridge has no recipe of {} that qplan knows; use megatron",
                          s.model.name);
     },
     Asks::model},
    {"bridge_muon",
     [](const Subject& s) { return s.plan.optimizer == OptimizerKind::muon && s.plan.zero > 0; },
     [](const Subject&) {
       return std::string(
           "Megatron-Bridge deals Muon's matrices out by another name (dist_muon) and without its "
           "distributed optimizer, which qplan does not write; use zero 0, or megatron");
     }},
    {"bridge_attention",
     [](const Subject& s) { return s.plan.attention_backend != AttentionBackend::automatic; },
     [](const Subject&) {
       return std::string(
           "qplan writes no choice of attention for Megatron-Bridge; leave attention_backend out, "
           "or use megatron");
     }},
    // Bars in its recipes' pattern say where stages begin; without them they are alike.
    {"bridge_hybrid_stages",
     [](const Subject& s) {
       return s.model.mamba && (s.plan.vpp > 1 || !s.plan.pipeline_layout.empty());
     },
     [](const Subject&) {
       return std::string(
           "qplan writes stages of one length for Megatron-Bridge's models with Mamba-2 layers, "
           "and no virtual ones; use megatron, or vpp 1 without pipeline_layout");
     }},
    // Its first stage injects what the tower taps into the first of its layers.
    {"bridge_deepstack",
     [](const Subject& s) {
       if (!s.model.vision || s.plan.pp == 1) return false;
       const auto& layout = s.plan.pipeline_layout;
       const std::int64_t first =
           layout.empty() ? s.model.num_layers / (s.plan.pp * s.plan.vpp) : layout.front();
       return std::ssize(s.model.vision->deepstack_layers) > first;
     },
     [](const Subject& s) {
       return fmt::format(
           "Megatron-Bridge's Qwen3-VL adds {} taps of the tower to layers of the first stage, "
           "which must hold as many; use a smaller pp x vpp, or a pipeline_layout",
           s.model.vision->deepstack_layers.size());
     }},
    {"bridge_gradients", [](const Subject& s) { return s.plan.grad_dtype == DType::fp16; },
     [](const Subject&) {
       return std::string("qplan writes fp32 and bf16 gradients for Megatron-Bridge, not fp16");
     }},
    // Of a module that CanonicalLoRA adapts in part it calls the adapters that are not there
    // (LoRALinearSplitQKV.forward in peft/canonical_lora.py).
    {"bridge_adapters_in_part",
     [](const Subject& s) { return !bridge_says_targets(s.model, s.plan.lora()); },
     [](const Subject&) {
       return std::string(
           "Megatron-Bridge adapts q, k and v together or none of them, so gate and up, and so an "
           "MLP's two layers in all experts; use lora_targets with all of these, or all-linear");
     }},
});

}  // namespace

std::span<const Limit> bridge_limits() {
  return kBridgeLimits;
}

}  // namespace qplan
