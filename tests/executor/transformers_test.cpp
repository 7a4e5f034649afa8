// The executor against Hugging Face transformers: weights and tokens as files, losses and gradients
// as transformers computed them (tests/data/transformers).

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "executor/run.h"
#include "planner/rules/feasible.h"
#include "tests/executor/reference_runs.h"

using namespace qplan;

namespace {

// Every model on one rank, and on a few plans that split what it has.
struct Case {
  std::string model;
  std::vector<std::string> plans;
};
const std::vector<Case> kCases{
    {"llama",
     {"mbs1", "mbs4 recompute=full", "tp2 sp", "dp2 zero3", "pp2 1f1b", "tp2 pp2 dp2 zero1 sp",
      "cp2", "cp2 cp_comm=a2a", "cp2 tp2 cp_comm=all_gather sp"}},
    {"llama3", {"mbs1", "tp2 cp2"}},
    {"qwen3", {"mbs2", "tp4", "pp2 dp2 zero1 gpipe", "dp4 zero1"}},
    {"qwen3_moe", {"mbs1", "dp2 ep2", "tp2 sp ep2 etp1", "dp4 ep4 zero3", "pp2 dp2 ep2"}},
    {"mixtral", {"mbs1", "tp2 dp2 ep2 etp2 sp"}},
    {"qwen2", {"mbs1", "tp2"}},
    {"gpt2", {"mbs1", "tp4 sp"}},
    {"nemotron", {"mbs1", "tp2"}},
    {"qwen2_moe", {"mbs1", "tp2 sp ep2 etp1", "dp2 ep2 zero3"}},
    {"gpt_oss", {"mbs1", "tp2 ep2 etp1 sp", "dp2 ep2 zero1", "cp2"}},
    {"llama4",
     {"mbs1", "mbs4 recompute=full", "mbs2 recompute=selective:moe_act+layernorm",
      "tp2 sp ep2 etp1", "tp2 sp dp2 ep2 etp2", "tp4 sp", "dp2 ep2 zero3", "pp3",
      "pp3 dp2 ep2 zero2 gpipe", "cp2 cp_comm=a2a"}},
    {"qwen3_next",
     {"mbs1", "mbs4 recompute=full", "mbs2", "tp2 sp ep2 etp1", "dp2 ep2 zero3", "pp3",
      "tp2 sp pp3 dp2 zero1 etp2", "mbs2 recompute=selective:gdn_norm_out+layernorm", "cp2 ep2",
      "cp2 mbs2 cp_comm=a2a"}},
    {"qwen3_5", {"mbs1", "mbs2", "tp2 sp", "dp2 zero3", "cp2"}},
    {"ernie4_5", {"mbs1", "tp2"}},
    {"nemotron_h",
     {"mbs1", "mbs4 recompute=full", "mbs2", "tp2 sp ep2 etp1", "dp2 ep2 zero3", "pp5",
      "tp2 sp dp2 zero1 etp2", "cp2 ep2"}},
    {"deepseek_v2", {"mbs1", "tp2 sp ep2 etp1", "pp2 dp2 zero3"}},
    {"deepseek_v3", {"mbs1", "tp2 sp ep2 etp1", "dp2 ep2 zero1", "cp2"}},
    {"qwen3_vl_moe",
     {"mbs1", "mbs4 recompute=full", "tp2 sp ep2 etp1", "dp2 ep2 zero1", "dp4 zero3", "cp2",
      "cp2 ep2 cp_comm=a2a"}}};

struct How {
  Precision precision = Precision::fp32;
  std::int64_t steps = 0;    // more than the reference's, over its batches again and again
  bool all_experts = false;  // with_all_experts()
};

RunResult run_reference(const ReferenceRun& reference, const std::string& words, How how = {}) {
  ParallelPlan defaults;
  defaults.precision = how.precision;
  defaults.routing = Routing::natural;
  defaults.global_batch_size = reference.global_batch_size();
  defaults.seq_len = reference.seq_len();
  const ParallelPlan plan = parse_plan(words, defaults);
  for (const Infeasible& reason : why_infeasible(
           reference.model(), plan, recipe_of(RecipeKind::qplan), {.gpus = plan.world()})) {
    FAIL_CHECK(reason.message);
  }
  const ModelSpec model = how.all_experts ? with_all_experts(reference.model()) : reference.model();
  RunOptions options;
  options.steps = static_cast<int>(how.steps > 0 ? how.steps : reference.steps());
  options.optimizer = {reference.adamw(), reference.clip_grad()};
  options.keep_gradients = true;
  options.weights = reference.weights();
  options.tokens = file_tokens(ReferenceRun::tokens_file(),
                               {.vocab_size = reference.model().vocab_size,
                                .seq_len = reference.seq_len(),
                                .sequences = options.steps * reference.global_batch_size(),
                                .repeat = how.steps > 0});
  // Room for any routing.
  return run(model, plan, {.moe_imbalance = 8}, options);
}

void check(const ReferenceRun& reference, const std::string& plan) {
  CAPTURE(plan);
  const RunResult result = run_reference(reference, plan);
  CHECK(reference.worst_gradient(result.gradients) < 1e-4);
  for (std::int64_t step = 0; step < reference.steps(); ++step) {
    CAPTURE(step);
    const auto k = static_cast<std::size_t>(step);
    CHECK(result.loss[k] == doctest::Approx(reference.loss(step)).epsilon(1e-5));
    CHECK(result.grad_norm[k] == doctest::Approx(reference.grad_norm(step)).epsilon(1e-4));
  }
}

}  // namespace

TEST_CASE("losses, gradients and steps are those of transformers, whatever the plan") {
  for (const Case& c : kCases) {
    CAPTURE(c.model);
    const ReferenceRun reference(c.model);
    for (const std::string& plan : c.plans) check(reference, plan);
  }
}

// bf16 has a unit round-off of 2^-8, and every product, norm and sum of a layer rounds its result:
// a gradient's error is a few round-offs that add up like noise, of which no sharp bound is known.
// How far transformers' own bf16 is from its fp32, from the same weights, says how many they are:
// an independent implementation that rounds at other places may be half as far again. A loss is a
// mean over tokens, whose errors cancel: half a round-off. Every token goes to all experts here,
// for one that changes sides by a rounding moves a 64th of all gradients.
TEST_CASE("in bf16 a step is as close to fp32 as that of transformers in bf16") {
  for (const Case& c : kCases) {
    CAPTURE(c.model);
    const ReferenceRun reference(c.model);
    const RunResult exact = run_reference(reference, "mbs4", {.all_experts = true});
    const RunResult rounded =
        run_reference(reference, "mbs4", {.precision = Precision::bf16, .all_experts = true});
    CHECK(exact.loss[0] == doctest::Approx(reference.loss_with_all_experts()).epsilon(1e-5));
    const auto theirs = reference.bf16_errors(),
               ours = reference.errors(rounded.gradients, exact.gradients);
    MESSAGE(c.model, ": loss ", rounded.loss[0] / exact.loss[0] - 1, " (", theirs.loss,
            "), worst gradient ", ours.worst_gradient, " (", theirs.worst_gradient,
            "), mean gradient ", ours.mean_gradient, " (", theirs.mean_gradient, ")");
    CHECK(std::abs(rounded.loss[0] / exact.loss[0] - 1) < 0x1p-9);
    CHECK(ours.mean_gradient < 1.5 * theirs.mean_gradient);
    CHECK(ours.worst_gradient < 1.5 * theirs.worst_gradient);
  }
}

// fp32's unit round-off is 2^-24 = 6e-8, and fifty steps add a few up. In bf16 the two round at
// other places; losses stay within a round-off where all is smooth, and within some where tokens
// choose experts.
TEST_CASE("fifty steps of AdamW go down the same curve as torch's, in fp32 and in bf16") {
  int curves = 0;
  for (const std::string& name : ReferenceRun::names()) {
    const ReferenceRun reference(name);
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      const std::vector<double> expected = reference.curve(std::string(to_word(precision)));
      if (expected.empty()) continue;
      ++curves;
      CAPTURE(name);
      CAPTURE(std::string(to_word(precision)));
      const auto steps = static_cast<std::int64_t>(expected.size());
      const RunResult result = run_reference(reference, "mbs4", {precision, steps});
      double worst = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        worst = std::max(worst, std::abs(result.loss[i] / expected[i] - 1));
      }
      MESSAGE(name, " in ", std::string(to_word(precision)), ": largest difference ", worst);
      const double smooth = reference.model().moe ? 0x1p-5 : 0x1p-8;
      CHECK(worst < (precision == Precision::fp32 ? 1e-5 : smooth));
      CHECK(result.loss.back() < 0.6 * result.loss.front());  // it has learned
    }
  }
  CHECK(curves == 8);
}
