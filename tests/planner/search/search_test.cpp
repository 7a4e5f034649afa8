// Which plans a search finds where layers do not divide, or whole layers are recomputed.

#include "planner/search/search.h"

#include <doctest/doctest.h>

#include <set>

#include "models/program/step_program.h"
#include "planner/search/enumerate.h"
#include "planner/search/search_less.h"

namespace qplan {
namespace {

using P = ParallelPlan;

SearchSpace space_of(std::int64_t gpus, std::int64_t batch) {
  SearchSpace space;
  space.gpus = gpus;
  space.job.global_batch_size = batch;
  space.job.seq_len = 4096;
  return space;
}

SearchResult search_megatron(const ModelSpec& model, const HardwareProfile& hardware,
                             const SearchSpace& space) {
  return search(CostModel(model, recipe_of(RecipeKind::megatron), hardware, {}), space, {});
}

TEST_CASE("a plan that fits once its layers are moved is found") {
  const ModelSpec model = load_model("nemotron4-15b");
  SearchSpace space = space_of(100, 1000);
  space[&P::tp] = {1};
  space[&P::pp] = {10};
  space[&P::cp] = {1};
  space[&P::zero] = {1};
  space[&P::micro_batch_size] = {2};
  space[&P::schedule] = {ScheduleKind::one_f_one_b};
  space[&P::recompute] = {Recompute{RecomputeKind::full, {}, 0}};
  space[&P::offload] = {Offload{}};
  const SearchResult found = search_megatron(model, load_hardware("a100-40gb-sxm"), space);
  REQUIRE(found.plans.size() == 1);
  // The framework's own layout leaves the first stage as many, beside 256 thousand embeddings.
  CHECK(found.plans[0].plan.pipeline_layout != stage_layers(model, [&] {
          ParallelPlan own = found.plans[0].plan;
          own.pipeline_layout.clear();
          return own;
        }()));
  CHECK(found.considered == 2);
  CHECK(found.out_of_memory == 1);
  const HardwareProfile hardware = load_hardware("a100-40gb-sxm");
  const CostModel cost(model, recipe_of(RecipeKind::megatron), hardware, {});
  CHECK(search_any(cost, space, {}).plans.size() == 1);
}

TEST_CASE("any few chunks are tried where layers may be placed, else those that divide them") {
  const ModelSpec model = load_model("gpt-oss-120b");  // 36 layers
  const auto chunks = [&](int pp, RecipeKind recipe, const std::vector<int>& layout = {}) {
    SearchSpace space = space_of(pp, 64);
    space.job.pipeline_layout = layout;
    std::set<int> seen;
    each_plan(model, recipe_of(recipe), load_hardware("h100-sxm"), space, {1, 1, pp, 1},
              [&](const ParallelPlan& plan) { seen.insert(plan.vpp); });
    return seen;
  };
  CHECK(chunks(4, RecipeKind::megatron) == std::set<int>{1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(chunks(5, RecipeKind::megatron) == std::set<int>{1, 2, 3, 4, 5, 6, 7});
  CHECK(chunks(4, RecipeKind::megatron_legacy) == std::set<int>{1, 3, 9});
  // A layout says how many.
  CHECK(chunks(4, RecipeKind::megatron, {4, 4, 4, 4, 5, 5, 5, 5}) == std::set<int>{1, 2});
}

TEST_CASE("DualPipe is tried unasked where no other schedule shortens the bubble") {
  const ModelSpec model = load_model("deepseek-v3");
  const auto schedules = [&](RecipeKind recipe) {
    std::set<ScheduleKind> seen;
    each_plan(model, recipe_of(recipe), load_hardware("h100-sxm"), space_of(8, 64), {1, 1, 8, 1},
              [&](const ParallelPlan& plan) { seen.insert(plan.schedule); });
    return seen;
  };
  using enum ScheduleKind;
  CHECK(schedules(RecipeKind::dualpipe) == std::set<ScheduleKind>{one_f_one_b, dualpipe});
  CHECK(schedules(RecipeKind::qplan).count(dualpipe) == 0);
}

TEST_CASE("the best plans recompute no more layers than they must to fit") {
  const ModelSpec model = load_model("qwen2.5-14b");
  SearchSpace space = space_of(12, 1008);
  space[&P::pp] = {12};
  const HardwareProfile hardware = load_hardware("rtx-4090");
  const SearchResult found = search_megatron(model, hardware, space);
  REQUIRE_FALSE(found.plans.empty());
  const ParallelPlan& best = found.plans[0].plan;
  REQUIRE(best.recompute.kind == RecomputeKind::full);
  REQUIRE(best.recompute.layers > 0);
  const CostModel cost(model, recipe_of(RecipeKind::megatron), hardware, {});
  ParallelPlan fewer = best;
  if (--fewer.recompute.layers == 0) fewer.recompute = {};
  CHECK_FALSE(cost.fits(cost.memory(fewer)));
  ParallelPlan all = best;
  all.recompute.layers = 0;
  CHECK(found.plans[0].step_time < cost.step_time(all));
  // Who asks for a number gets it, with layers moved.
  space[&P::recompute] = {Recompute{RecomputeKind::full, {}, 2}};
  const SearchResult asked = search_megatron(model, hardware, space);
  REQUIRE_FALSE(asked.plans.empty());
  for (const RankedPlan& ranked : asked.plans) CHECK(ranked.plan.recompute.layers == 2);
}

TEST_CASE("nothing is recomputed or moved to the host by a few layers or twentieths without need") {
  const ModelSpec model = load_model("tiny");  // 4 layers, of which a few MB lie on a device
  SearchSpace space = space_of(1, 8192);
  space.job.seq_len = 512;
  const SearchResult found = search_megatron(model, load_hardware("h100-sxm"), space);
  REQUIRE(found.plans.size() > 1);
  for (const RankedPlan& ranked : found.plans) {
    CAPTURE(to_string(ranked.plan));
    const double share = ranked.plan.offload.optimizer;
    CHECK((share == 0 || share == 0.25 || share == 1));  // those that are enumerated
  }
}

TEST_CASE("Megatron's other dispatcher is tried where no library sends experts' rows") {
  const ModelSpec model = load_model("qwen3-30b-a3b");
  const auto dispatchers = [&](std::string_view hardware) {
    std::set<MoeDispatcher> seen;
    each_plan(model, recipe_of(RecipeKind::megatron), load_hardware(std::string(hardware)),
              space_of(8, 64), {1, 1, 1, 8},
              [&](const ParallelPlan& plan) { seen.insert(plan.moe_dispatcher); });
    return seen;
  };
  using enum MoeDispatcher;
  CHECK(dispatchers("a100-80gb-sxm") == std::set<MoeDispatcher>{alltoall, allgather});
  CHECK(dispatchers("h100-sxm") == std::set<MoeDispatcher>{alltoall, deepep});
}

}  // namespace
}  // namespace qplan
