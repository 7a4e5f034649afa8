#include "planner/runs/predict_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>

#include "costmodel/profiles/hardware.h"
#include "models/error.h"
#include "planner/rules/feasible.h"
#include "planner/search/parallel_for.h"

namespace qplan {
namespace {

constexpr auto kSoftRules = std::to_array<std::string_view>({
    "key_value_heads_split",
    "expert_bias_split",
    "moe_needs_sequence_parallel",
    "learned_positions",
    "schedule_available",
    "pipeline_available",
    "interleaved_depth",
    "context_parallel_available",
    "ulysses_only",
    "ulysses_with_sequence_parallel",
    "ring_window",
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

// Everything that predictions of runs on one machine, of one model, by one recipe share.
struct Asked {
  ModelSpec model;
  RecipeKind kind = RecipeKind::megatron;
  int month = 0;
  Recipe recipe;
  std::string hardware_name;
  int gpus_per_node = 0;
  std::optional<NodeNetwork> network;
  HardwareProfile hardware;
  std::unique_ptr<CostModel> cost;  // refers to the model, the recipe and the machine
};

// A deque: the cost models keep references.
Asked& asked_for(const RunInputs& in, std::deque<Asked>& known) {
  for (Asked& asked : known) {
    if (asked.kind == in.recipe && asked.month == in.month && asked.hardware_name == in.hardware &&
        asked.gpus_per_node == in.gpus_per_node && asked.network == in.network &&
        asked.model == in.model) {
      return asked;
    }
  }
  Asked& asked = known.emplace_back();
  asked.model = in.model;
  asked.kind = in.recipe;
  asked.month = in.month;
  asked.recipe = recipe_of_month(in.recipe, in.month);
  asked.hardware_name = in.hardware;
  asked.gpus_per_node = in.gpus_per_node;
  asked.network = in.network;
  asked.hardware = load_hardware(in.hardware);
  if (in.gpus_per_node > 0) set_gpus_per_node(asked.hardware, in.gpus_per_node);
  if (in.network) set_network(asked.hardware, *in.network);
  asked.cost = std::make_unique<CostModel>(asked.model, asked.recipe, asked.hardware, JobFacts{});
  return asked;
}

RunPrediction predict_run(const RunInputs& in, const Asked& asked) {
  RunPrediction result;
  if (!asked.hardware.gpu.matmul.contains(in.plan.precision)) {
    result.unpriced = fmt::format("the machine lacks the precision: {} has no {}", in.hardware,
                                  to_word(in.plan.precision));
    return result;
  }
  const ClusterLimits limits{in.gpus, asked.hardware.gpu.compute_capability};
  for (const Infeasible& reason : why_infeasible(in.model, in.plan, recipe_of(in.recipe), limits)) {
    result.broken.emplace_back(reason.rule);
    if (is_soft_rule(reason.rule, in.recipe) || !result.refused.empty()) continue;
    result.refused = fmt::format("rule {}: {}", reason.rule, reason.message);
  }
  if (!result.refused.empty()) return result;
  try {
    result.estimate = asked.cost->evaluate(in.plan);
    result.feasible = result.estimate->fits;
  } catch (const Error& error) {
    result.unpriced = error.what();
  }
  return result;
}

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

std::vector<RunPrediction> predict_runs(const std::vector<MeasuredRun>& runs, int threads) {
  std::deque<Asked> known;
  std::vector<const Asked*> asked(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].inputs) asked[i] = &asked_for(*runs[i].inputs, known);
  }
  std::vector<RunPrediction> predictions(runs.size());
  parallel_for(runs.size(), thread_count(threads), [&](std::size_t i) {
    if (asked[i] == nullptr) {
      predictions[i].unpriced = runs[i].unpriced;
    } else {
      predictions[i] = predict_run(*runs[i].inputs, *asked[i]);
    }
  });
  return predictions;
}

}  // namespace qplan
