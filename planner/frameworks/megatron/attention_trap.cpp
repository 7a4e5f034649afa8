// Recomputed attention beside kernels that keep no scores: what it frees is asked of the memory
// model (docs/evidence/archive/issue3-fourteenth-round.md has it measured).

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "costmodel/fold/block_cost.h"
#include "models/program/blocks.h"
#include "planner/frameworks/megatron/trap.h"

namespace qplan {
namespace {

using Case = MegatronCase;

// What a layer and microbatch leaves for backward.
Bytes kept(const Case& c, const LayerKind& layer, EnumSet<RecomputeModule> modules) {
  const ParallelPlan& plan = c.plan();
  BlockShape s;
  s.layer = layer;
  s.seq_len = plan.seq_len;
  s.precision = plan.precision;
  s.attention_backend = plan.attention_backend;
  s.dropout = plan.dropout;
  s.recompute = modules.empty() ? RecomputeKind::none : RecomputeKind::selective;
  s.recompute_modules = modules;
  const Block block = build_block(c.model(), recipe_of(c.scene.draft.recipe), s);
  return memory_of(block, BackwardForm::whole).forward.net;
}

// How much more of itself a layer keeps for core_attn; nothing: the model has no attention.
std::optional<double> kept_for_core(const Case& c, EnumSet<RecomputeModule> modules) {
  const auto& layers = c.model().layers;
  const auto layer = std::find_if(layers.begin(), layers.end(),
                                  [](const LayerKind& l) { return l.mixer == Mixer::attention; });
  if (layer == layers.end()) return std::nullopt;
  EnumSet<RecomputeModule> others;
  for (const auto& [module, name] : Words<RecomputeModule>::table) {
    if (modules.has(module) && module != RecomputeModule::core_attn) others.add(module);
  }
  return kept(c, *layer, modules) / kept(c, *layer, others) - 1;
}

bool is_off(const Case& c, const std::string& variable) {
  const auto& launches = c.scene.files.launches;
  return std::any_of(launches.begin(), launches.end(), [&](const Launch& launch) {
    const auto said = launch.environment.find(variable);
    return said != launch.environment.end() && said->second == "0";
  });
}

// Transformer Engine's own choice, but before Ampere and where it is told otherwise.
bool is_fused(const Case& c) {
  const int capability = c.scene.question.limits.compute_capability;
  const bool told = c.is("--transformer-impl", "local") || c.is("--attention-backend", "local") ||
                    c.is("--attention-backend", "unfused") ||
                    (is_off(c, "NVTE_FLASH_ATTN") && is_off(c, "NVTE_FUSED_ATTN"));
  return !told && (capability == 0 || capability >= 80) && c.plan().precision != Precision::fp32;
}

// moe_act wants grouped products, and no delayed scaling: full recomputation is what is left.
std::string what_frees(const Case& c) {
  const bool allowed = c.may_be_said("--moe-grouped-gemm") && !c.delayed_scaling();
  if (c.model().moe && !c.model().mla && !allowed) return "full recomputation frees memory";
  return fmt::format("--recompute-modules {} or full recomputation free memory",
                     c.model().mla   ? "mla_up_proj"
                     : c.model().moe ? "moe_act"
                                     : "mlp");
}

}  // namespace

void check_core_attention(const Case& c, Findings& out) {
  const Recompute& recompute = c.plan().recompute;
  const bool named = c.has("--recompute-modules");
  // A recipe of Megatron-Bridge's may name modules that its script does not.
  const bool known = named || c.part.dialect != Dialect::bridge;
  const Setting* at = c.find("--recompute-activations");
  if (const Setting* const kind = c.find("--recompute-granularity")) at = kind;
  if (at == nullptr || !known || recompute.kind != RecomputeKind::selective ||
      c.part.dialect == Dialect::megatron_deepspeed || !is_fused(c)) {
    return;
  }
  auto modules = recompute.modules;
  if (modules.empty()) modules.add(RecomputeModule::core_attn);
  if (!modules.has(RecomputeModule::core_attn)) return;
  const auto more = kept_for_core(c, modules);
  // The log-sum-exp alone: a few bytes of the hundreds of thousands that a token leaves.
  constexpr double kNextToNothing = 0.01;
  if (!more || *more < -kNextToNothing) return;
  const std::string effect =
      *more > 0 ? fmt::format(
                      "frees nothing: its checkpoint keeps queries and keys a second time, "
                      "a layer {:.0f}% more in all",
                      100 * *more)
                : std::string("frees next to nothing");
  if (named) at = c.find("--recompute-modules");
  out.push_back({Severity::warning, "recompute_fused_attention", at->place,
                 fmt::format("fused attention keeps no scores, so that recomputing core_attn {}; "
                             "and attention's forward runs twice",
                             effect),
                 fmt::format("leave core_attn out; {}", what_frees(c)),
                 "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1987"});
}

}  // namespace qplan
