// What a cost model remembers of the plans that it was asked about changes no answer: search, which
// asks about thousands, says of each what predict says, which asks about one.

#include <doctest/doctest.h>

#include "costmodel/profiles/hardware.h"
#include "models/model_spec.h"
#include "tests/properties/random_plans.h"

using namespace qplan;

namespace {

// Another division of the same ranks: what one axis has less another has more.
ParallelPlan divided_otherwise(RandomPlans& random, const ParallelPlan& plan) {
  using P = ParallelPlan;
  const std::vector<int P::*> axes = {&P::tp, &P::pp, &P::dp, &P::cp};
  ParallelPlan other = plan;
  const auto from = random.pick(axes), to = random.pick(axes);
  if (other.*from % 2 != 0 || from == to) return plan;
  other.*from /= 2;
  other.*to *= 2;
  other.pipeline_layout.clear();
  return other;
}

}  // namespace

TEST_CASE("plans that were priced before change no plan's price, bounds or memory") {
  RandomPlans random(29);
  const std::vector<ModelSpec> models = {load_model("megatron-22b"), load_model("tiny"),
                                         load_model("tiny-moe"), load_model("nemotron-h-8b")};
  HardwareProfile hardware = load_hardware("h100-sxm");
  hardware.gpu.speed_spread.waited_share = 0.01;  // as two or more GPUs calibrate it
  const JobFacts facts{.moe_imbalance = 1.5, .active_experts = 0.5, .nvlink_domain = 4};
  int compared = 0;
  for (const auto& [kind, word] : Words<RecipeKind>::table) {
    CAPTURE(word);
    const Recipe& recipe = recipe_of(kind);
    for (const ModelSpec& model : models) {
      if (!can_be_drawn(model, kind)) continue;
      CAPTURE(model.name);
      const CostModel shared(model, recipe, hardware, facts);
      PlanSifter sifter(shared);
      for (int round = 0; round < test_rounds(60); ++round) {
        const ParallelPlan drawn = random.next(model, recipe);
        for (const ParallelPlan& plan :
             {drawn, divided_otherwise(random, drawn), divided_otherwise(random, drawn),
              random.with_a_word_changed(model, recipe, drawn)}) {
          if (!broken_rule(model, plan, recipe, {plan.world(), 90}).empty()) continue;
          CAPTURE(to_string(plan));
          const CostModel fresh(model, recipe, hardware, facts);
          CHECK(sifter.check(plan).device_peak == fresh.memory(plan).worst_stage().device);
          CHECK(sifter.own_work_bound(plan).step <= fresh.lower_bound(plan).step * (1 + 1e-9));
          CHECK(shared.lower_bound(plan).step == fresh.lower_bound(plan).step);
          CHECK(shared.step_time(plan) == fresh.step_time(plan));
          ++compared;
        }
      }
    }
  }
  CHECK(compared > 100);
}
