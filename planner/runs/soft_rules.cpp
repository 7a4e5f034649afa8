#include "planner/runs/soft_rules.h"

#include <algorithm>
#include <array>

namespace qplan {
namespace {

constexpr auto kSoftRules = std::to_array<std::string_view>({
    "key_value_heads_split",
    "expert_bias_split",
    "moe_needs_sequence_parallel",
    "learned_positions",
    "schedule_available",
    "pipeline_available",
    "interleaved_iterators",
    "context_parallel_available",
    "ulysses_only",
    "ulysses_with_sequence_parallel",
    "ring_window",
    "sinks_context",
    "mla_cp_comm",
    "zero_above_one",
    "zero_below_two",
    "zero_with_pipeline",
    "autotp_zero",
    "mics_zero",
    "expert_parallel_available",
    "expert_tensor_available",
    "experts_within_shards",
    "autoep_zero3",
    "dispatcher_available",
    "deepep_group",
    "dispatcher_gpu",
    "dispatcher_rack",
    "dispatcher_network",
    "model_available",
    "precision_gpu",
    "precision_available",
    "low_precision_tokens",
    "low_precision_widths",
    "precision_aware_optimizer",
    "overlap_tp",
    "overlap_param",
    "overlap_ep",
    "offload_optimizer_available",
    "offload_optimizer_zero",
    "offload_fraction_zero",
    "offload_whole",
    "offload_activations_available",
    "offload_activation_layers",
    "offload_checkpoints",
    "cuda_graph_available",
    "cuda_graph_parallel",
});

}  // namespace

bool is_soft_rule(std::string_view rule, RecipeKind recipe) {
  // nanotron's balance leaves stages without layers, and runs (the grid of the Ultra-Scale
  // playbook: 36 runs).
  if (recipe == RecipeKind::nanotron && rule == "layout_empty_stage") return true;
  return std::find(kSoftRules.begin(), kSoftRules.end(), rule) != kSoftRules.end();
}

std::size_t soft_rule_count() {
  return kSoftRules.size();
}

}  // namespace qplan
