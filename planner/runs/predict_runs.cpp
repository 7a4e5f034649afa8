#include "planner/runs/predict_runs.h"

#include <fmt/format.h>

#include <deque>

#include "costmodel/profiles/hardware.h"
#include "models/error.h"
#include "planner/rules/feasible.h"
#include "planner/runs/soft_rules.h"
#include "planner/runs/trainers.h"
#include "planner/search/parallel_for.h"

namespace qplan {
namespace {

// Everything that predictions of runs on one machine, of one model, by one recipe share.
struct Asked {
  ModelSpec model;
  RecipeKind kind = RecipeKind::megatron;
  int month = 0;
  bool torch_layers = false, single_experts = false, fused_adam = false;
  Recipe recipe;
  std::string hardware_name;
  int gpus_per_node = 0;
  std::optional<NodeNetwork> network;
  HardwareProfile hardware;
  std::unique_ptr<CostModel> cost;  // refers to the model, the recipe and the machine
};

// A deque: the cost models keep references.
Asked& asked_for(const RunInputs& in, std::deque<Asked>& known, const MachineOfName& machine) {
  for (Asked& asked : known) {
    if (asked.kind == in.recipe && asked.month == in.month && asked.hardware_name == in.hardware &&
        asked.gpus_per_node == in.gpus_per_node && asked.network == in.network &&
        asked.torch_layers == in.torch_layers && asked.fused_adam == in.fused_adam &&
        asked.single_experts == in.single_experts && asked.model == in.model) {
      return asked;
    }
  }
  Asked& asked = known.emplace_back();
  asked.model = in.model;
  asked.kind = in.recipe;
  asked.month = in.month;
  asked.torch_layers = in.torch_layers;
  asked.single_experts = in.single_experts;
  asked.fused_adam = in.fused_adam;
  asked.recipe = recipe_of_month(in.recipe, in.month);
  asked.recipe.memory.expert_workspaces = !in.single_experts;
  if (in.fused_adam) asked.recipe.kernels.fused_adam = true;
  // Each expert is then a module as a dense MLP is (SequentialMLP in Megatron-LM d98e8a64,
  // core/transformer/moe/experts.py).
  if (in.single_experts) asked.recipe.host.expert.product = asked.recipe.host.launch;
  if (in.torch_layers) {
    asked.recipe.kernels.attention = AttentionKernel::unfused;
    asked.recipe.kernels.norms_in_linears = false;
    asked.recipe.keeps.dummy_weight_gradients = false;
    asked.recipe.memory.engine_layers = false;
  }
  asked.hardware_name = in.hardware;
  asked.gpus_per_node = in.gpus_per_node;
  asked.network = in.network;
  asked.hardware = machine(in.hardware);
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
  const ClusterLimits limits = limits_of(asked.hardware, in.gpus);
  for (const Infeasible& reason : why_infeasible(in.model, in.plan, recipe_of(in.recipe), limits)) {
    result.broken.emplace_back(reason.rule);
    if (is_soft_rule(reason.rule, in.recipe) || !result.refused.empty()) continue;
    result.refused = fmt::format("rule {}: {}", reason.rule, reason.message);
  }
  if (!result.refused.empty()) return result;
  try {
    result.estimate = asked.cost->evaluate(in.plan);
    result.feasible = result.estimate->fits;
    if (!in.known_trainer) widen(*result.estimate, kUnknownTrainerError);
  } catch (const Error& error) {
    result.unpriced = error.what();
  }
  return result;
}

}  // namespace

std::vector<RunPrediction> predict_runs(const std::vector<MeasuredRun>& runs, int threads,
                                        const MachineOfName& machine) {
  std::deque<Asked> known;
  std::vector<const Asked*> asked(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].inputs) asked[i] = &asked_for(*runs[i].inputs, known, machine);
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
