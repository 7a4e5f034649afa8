#pragma once
// What tests of executed plans share: the run on one rank that a plan is compared with, and how.

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "costmodel/evaluate.h"
#include "executor/run.h"
#include "models/model_spec.h"
#include "models/plan/parallel_plan.h"
#include "planner/rules/feasible.h"
#include "tests/properties/tiny_plans.h"
#include "tests/tiny_models.h"

namespace qplan {

inline constexpr JobFacts kFacts{.moe_imbalance = 8};  // room for any routing of the tiny models

inline ParallelPlan plan_of(const std::string& line) {
  ParallelPlan defaults;
  defaults.precision = Precision::fp32;
  defaults.routing = Routing::natural;
  return parse_plan(line, defaults);
}

// The same batch on one rank, one sequence at a time; where experts take a share of what a rank has
// at once, as many as the plan.
inline ParallelPlan alone(const ParallelPlan& plan) {
  ParallelPlan one;
  one.moe_capacity_factor = plan.moe_capacity_factor;
  one.moe_token_drop_policy = plan.moe_token_drop_policy;
  if (plan.moe_capacity_factor > 0) one.micro_batch_size = plan.micro_batch_size;
  one.precision = plan.precision;
  one.lora_rank = plan.lora_rank;
  one.lora_alpha = plan.lora_alpha;
  one.lora_targets = plan.lora_targets;
  one.lora_embeddings = plan.lora_embeddings;
  one.dora = plan.dora;
  one.optimizer = plan.optimizer;
  one.routing = plan.routing;
  one.global_batch_size = plan.global_batch_size;
  one.seq_len = plan.seq_len;
  return one;
}

// `batch`: the seed of its tokens.
inline RunOptions five_steps(const ModelSpec& model, unsigned batch = 1) {
  RunOptions options;
  options.weights = seeded_weights(model, 1);
  options.tokens = seeded_tokens(batch, model.vocab_size);
  options.steps = 5;
  options.keep_gradients = true;
  options.optimizer.adamw.lr = 1e-3;
  options.optimizer.adamw.weight_decay = 0.1;
  return options;
}

// |a - b| / |b|, absolute where b is 0.
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

// What a plan computes, remembered.
inline const RunResult& result_of(const ModelSpec& model, const ParallelPlan& plan,
                                  unsigned batch = 1) {
  static std::map<std::string, RunResult> known;
  const std::string key = model.name + to_string(plan) + "#" + std::to_string(batch);
  auto it = known.find(key);
  if (it == known.end()) {
    it = known.emplace(key, run(model, plan, kFacts, five_steps(model, batch))).first;
  }
  return it->second;
}

// The bytes that the cost model's fold predicts are those that the program allocates.
inline void check_memory(const ModelSpec& model, const ParallelPlan& plan,
                         const RunResult& executed) {
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const CostModel cost(model, recipe_of(RecipeKind::qplan), hardware, kFacts);
  const MemoryEstimate predicted = cost.memory(plan);
  REQUIRE(predicted.stages.size() == executed.live_peak.size());
  for (std::size_t stage = 0; stage < executed.live_peak.size(); ++stage) {
    CAPTURE(stage);
    CHECK(predicted.stages[stage].peak.value() == executed.live_peak[stage].value());
    CHECK(executed.arena[stage] >= executed.live_peak[stage]);
  }
}

// `reference`: another plan that computes the same.
inline void check_against(const ModelSpec& model, const ParallelPlan& reference,
                          const ParallelPlan& plan) {
  CAPTURE(model.name);
  const std::string line = to_string(plan);
  CAPTURE(line);
  for (const Infeasible& reason :
       why_infeasible(model, plan, recipe_of(RecipeKind::qplan), {.gpus = plan.world()})) {
    FAIL(reason.message);
  }
  const auto shuffled = [&](unsigned batch) {
    RunOptions options = five_steps(model, batch);
    options.shuffle = 7;
    return run(model, plan, kFacts, options);
  };
  unsigned batch = 1;
  RunResult many = shuffled(batch);
  // A token whose choice of experts hangs on a rounding takes its part of all gradients elsewhere:
  // one batch in some hundreds has one, and no two.
  constexpr double kSame = 1e-4;
  const bool chooses = model.moe && plan.routing == Routing::natural;
  if (chooses && distance(many.gradients[0], result_of(model, reference).gradients[0]) > kSame) {
    many = shuffled(++batch);
  }
  const RunResult& one = result_of(model, reference, batch);
  CHECK(std::abs(many.loss[0] / one.loss[0] - 1) < 1e-5);
  CHECK(std::abs(many.grad_norm[0] / one.grad_norm[0] - 1) < 1e-5);
  REQUIRE(many.mtp_loss.size() == one.mtp_loss.size());
  for (std::size_t i = 0; i < one.mtp_loss.size(); ++i) {
    CHECK(std::abs(many.mtp_loss[i] / one.mtp_loss[i] - 1) < (i == 0 ? 1e-5 : 1e-4));
  }
  const std::vector<ModelParameter> parameters = model_parameters(model, plan.lora());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    CAPTURE(std::string(to_word(parameters[i].parameter.role)));
    CAPTURE(parameters[i].layer);
    CAPTURE(parameters[i].copy);
    CHECK(distance(many.gradients[i], one.gradients[i]) < kSame);
  }
  for (std::size_t i = 0; i < one.loss.size(); ++i) {
    CHECK(std::abs(many.loss[i] / one.loss[i] - 1) < 1e-4);
  }
  CHECK(many.in_program_order);
  check_memory(model, plan, many);
}

inline void check_against_one_rank(const ModelSpec& model, const ParallelPlan& plan) {
  check_against(model, alone(plan), plan);
}

}  // namespace qplan
