// The executor against Hugging Face transformers: weights and tokens as files, losses and gradients
// as transformers computed them (tests/data/transformers).

#include <doctest/doctest.h>

#include "executor/run.h"
#include "planner/feasible.h"
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
    {"deepseek_v2", {"mbs1", "tp2 sp ep2 etp1", "pp2 dp2 zero3"}},
    {"deepseek_v3", {"mbs1", "tp2 sp ep2 etp1", "dp2 ep2 zero1", "cp2"}}};

RunResult run_reference(const ReferenceRun& reference, const std::string& words) {
  ParallelPlan defaults;
  defaults.precision = Precision::fp32;
  defaults.routing = Routing::natural;
  defaults.global_batch_size = reference.global_batch_size();
  defaults.seq_len = reference.seq_len();
  const ParallelPlan plan = parse_plan(words, defaults);
  for (const Infeasible& reason : why_infeasible(
           reference.model(), plan, recipe_of(RecipeKind::qplan), {.gpus = plan.world()})) {
    FAIL_CHECK(reason.message);
  }
  RunOptions options;
  options.steps = static_cast<int>(reference.steps());
  options.optimizer = {reference.adamw(), reference.clip_grad()};
  options.keep_gradients = true;
  options.weights = reference.weights();
  options.tokens = file_tokens(ReferenceRun::tokens_file(),
                               {.vocab_size = reference.model().vocab_size,
                                .seq_len = reference.seq_len(),
                                .sequences = reference.steps() * reference.global_batch_size()});
  // Room for any routing.
  return run(reference.model(), plan, {.moe_imbalance = 8}, options);
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
