// What a search does not enumerate, its best plans are moved to.

#include <doctest/doctest.h>

#include "tests/properties/search_jobs.h"

using namespace qplan;

namespace {

using P = ParallelPlan;

RankedPlan best_of(const std::string& model, const char* hardware, const SearchSpace& space) {
  const ModelSpec spec = load_model(model);
  const HardwareProfile machine = load_hardware(hardware);
  const CostModel cost(spec, recipe_of(RecipeKind::megatron), machine, {});
  const SearchResult found = search(cost, space, {});
  REQUIRE_FALSE(found.plans.empty());
  return found.plans.front();
}

SearchSpace space_of(std::int64_t gpus, std::int64_t global_batch_size) {
  SearchSpace space;
  space.gpus = gpus;
  space.job.global_batch_size = global_batch_size;
  return space;
}

}  // namespace

TEST_CASE("whoever asks for some number of chunks finds nothing that is much faster") {
  RandomPlans random(83);
  const int rounds = test_rounds(40);
  double lost = 0;
  int asked = 0;
  for (int round = 0; round < rounds; ++round) {
    SearchJob job = random_search_job(random);
    job.recipe = &recipe_of(RecipeKind::megatron);
    job.space.gpus = random.pick<std::int64_t>({8, 12, 16, 24});
    job.space.job.global_batch_size = job.space.gpus * random.pick<std::int64_t>({1, 2, 8});
    job.space[&P::vpp] = {};
    job.space[&P::schedule] = {};
    job.cap = gib(random.pick<double>({14, 20, 40, 75}));
    CAPTURE(round);
    CAPTURE(job.name);
    CAPTURE(job.space.gpus);
    const CostModel cost(job.model, *job.recipe, job.hardware, {}, job.cap);
    const SearchResult open = search(cost, job.space, {});
    for (const int vpp : {1, 3, 7}) {
      SearchSpace narrow = job.space;
      narrow[&P::vpp] = {vpp};
      const SearchResult found = search(cost, narrow, {});
      if (found.plans.empty()) continue;
      REQUIRE_FALSE(open.plans.empty());
      CAPTURE(to_string(found.plans.front().plan));
      const double ratio = open.plans.front().step_time / found.plans.front().step_time;
      CHECK(ratio < 1.03);
      lost += std::max(ratio - 1, 0.0);
      ++asked;
    }
  }
  if (rounds < 40) return;  // as under sanitizers
  CHECK(asked > 60);
  CHECK(lost / asked < 0.002);
}

TEST_CASE("the ends of a pipeline go without layers where that makes room for more chunks") {
  // 94 layers and two ends are 96 stages of 8 ranks; 8 ranks divide no number of chunks of 94.
  const RankedPlan best = best_of("qwen3-235b-a22b", "h100-sxm", space_of(512, 256));
  REQUIRE(best.plan.pipeline_layout.size() == 96);
  CHECK(best.plan.pipeline_layout.front() == 0);
  CHECK(best.plan.pipeline_layout.back() == 0);
}

TEST_CASE("no more of the optimizer lies on the host than must") {
  SearchSpace space = space_of(8, 64);
  const RankedPlan best = best_of("qwen3-32b", "a100-80gb-sxm", space);
  CHECK(best.plan.offload.optimizer > 0);
  CHECK(best.plan.offload.optimizer < 1);
  space[&P::offload] = {Offload{.optimizer = 1}};
  const RankedPlan whole = best_of("qwen3-32b", "a100-80gb-sxm", space);
  CHECK(whole.plan.offload.optimizer == 1);
  CHECK(best.step_time < whole.step_time * 0.96);
}

TEST_CASE("experts' exchange is hidden, and then shared by more ranks, unless somebody chose") {
  SearchSpace space = space_of(48, 960);
  const RankedPlan best = best_of("qwen3-30b-a3b", "gb200", space);
  CHECK(best.plan.overlap.has(OverlapKind::ep));
  space[&P::overlap] = {set_of(OverlapKind::grad, OverlapKind::param)};
  const RankedPlan seen = best_of("qwen3-30b-a3b", "gb200", space);
  CHECK_FALSE(seen.plan.overlap.has(OverlapKind::ep));
  CHECK(best.step_time < seen.step_time * 0.95);
  CHECK(best.plan.ep > seen.plan.ep);
}
