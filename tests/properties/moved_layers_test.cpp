// Searches move layers between stages: where a head is heavy, and where layers do not divide.

#include <doctest/doctest.h>

#include "planner/rules/feasible.h"
#include "planner/search/enumerate.h"
#include "planner/search/layout.h"
#include "tests/properties/search_jobs.h"

using namespace qplan;

namespace {

using P = ParallelPlan;

}  // namespace

// A search says "cannot be faster" and "out of memory" of plans with their layers where they lie.
TEST_CASE(
    "no plan is faster than the best, wherever its layers lie, and none fits where none is found") {
  RandomPlans random(71);
  std::int64_t compared = 0, moved = 0, only_moved = 0;
  for (int round = 0; round < test_rounds(60); ++round) {
    SearchJob job = random_search_job(random);
    job.recipe = &recipe_of(random.pick<RecipeKind>({RecipeKind::megatron, RecipeKind::qplan}));
    job.space.gpus = random.pick<std::int64_t>({6, 10, 12, 20});
    job.space.job.global_batch_size = job.space.gpus * random.pick<std::int64_t>({4, 6});
    job.space[&P::recompute] = {};
    job.cap = gib(random.pick<double>({8, 14, 20, 40, 75}));
    CAPTURE(round);
    CAPTURE(job.name);
    CAPTURE(to_word(job.recipe->kind));
    CAPTURE(job.space.gpus);
    const CostModel cost(job.model, *job.recipe, job.hardware, {}, job.cap);
    const SearchResult found = search(cost, job.space, {});
    const ClusterLimits limits = limits_of(job.hardware, job.space.gpus);
    std::int64_t drawn = random.pick<std::int64_t>({0, 7, 19, 31});
    const auto ask = [&](const ParallelPlan& plan, double tolerance) {
      CAPTURE(to_string(plan));
      if (!broken_rule(job.model, plan, *job.recipe, limits).empty()) return false;
      if (!cost.fits(cost.memory(plan))) return false;
      REQUIRE_FALSE(found.plans.empty());
      CHECK(cost.step_time(plan) >= found.plans.front().step_time * (1 - tolerance));
      return true;
    };
    for (const Skeleton& skeleton : skeletons(job.model, *job.recipe, job.hardware, job.space)) {
      if (skeleton.pp == 1) continue;
      each_plan(
          job.model, *job.recipe, job.hardware, job.space, skeleton, [&](const ParallelPlan& plan) {
            if (++drawn % 41 != 0) return;
            const bool fits = ask(plan, 1e-9);
            compared += fits ? 1 : 0;
            if (!broken_rule(job.model, plan, *job.recipe, limits).empty()) return;
            ParallelPlan even = plan;
            even.pipeline_layout = balanced_layout(job.model.num_layers, plan, cost.end_work(plan));
            if (even.pipeline_layout.empty()) return;
            // What would gain less than a hundredth is not moved.
            if (!ask(even, 0.01)) return;
            ++moved;
            only_moved += fits ? 0 : 1;
          });
    }
  }
  if (test_rounds(60) < 60) return;  // as under sanitizers: few plans are drawn
  CHECK(compared > 600);
  CHECK(moved > 600);
  CHECK(only_moved > 0);
}

TEST_CASE("layers move away from the rank of a heavy head, and the step gets shorter") {
  // 201 thousand words beside 36 layers of 2880: the head takes as long as two and a half layers.
  const ModelSpec model = load_model("gpt-oss-120b");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const CostModel cost(model, recipe_of(RecipeKind::megatron), hardware, {});
  SearchSpace space;
  space.gpus = 64;
  space.job.global_batch_size = 1024;
  space[&P::pp] = {4};
  space[&P::ep] = {8};
  space[&P::schedule] = {ScheduleKind::one_f_one_b};
  SearchOptions options;
  options.top = 1;
  const SearchResult found = search(cost, space, options);
  REQUIRE(found.plans.size() == 1);
  ParallelPlan even = found.plans[0].plan;
  REQUIRE_FALSE(even.pipeline_layout.empty());
  CHECK(even.pipeline_layout.back() < 9);
  even.pipeline_layout.clear();
  CHECK(found.plans[0].step_time < cost.step_time(even) * 0.97);
  // A layout that was asked for stays.
  space.job.pipeline_layout = {9, 9, 9, 9};
  const SearchResult asked = search(cost, space, options);
  REQUIRE(asked.plans.size() == 1);
  CHECK(asked.plans[0].plan.pipeline_layout == space.job.pipeline_layout);
}
