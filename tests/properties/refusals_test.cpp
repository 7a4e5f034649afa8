#include "planner/search/refusals.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "costmodel/least_memory.h"
#include "models/plan/plan_text.h"
#include "planner/rules/feasible.h"
#include "planner/search/enumerate.h"
#include "planner/search/search_less.h"
#include "tests/properties/search_jobs.h"

using namespace qplan;

namespace {

// With states on the host, in shares, and little of it: on devices and hosts some fit.
SearchJob tight_job(RandomPlans& random) {
  SearchJob job = random_search_job(random);
  job.recipe = &recipe_of(
      random.pick<RecipeKind>({RecipeKind::megatron, RecipeKind::deepspeed, RecipeKind::fsdp2,
                               RecipeKind::qplan, RecipeKind::megatron_fsdp, RecipeKind::ddp}));
  Offload half, all, params;
  half.optimizer = 0.5;
  all.optimizer = params.optimizer = 1;
  params.params = true;
  job.space[&ParallelPlan::offload] = {Offload{}, half, all, params};
  job.space[&ParallelPlan::micro_batch_size] = {1};
  if (random.coin(0.5)) job.space.job.lora_rank = 16;
  const auto parameters = static_cast<double>(count_parameters(job.model).total());
  // Bytes of a parameter, on all devices and on the hosts that they share.
  job.cap = Bytes(parameters * random.pick<double>({2, 6, 12, 20}) /
                  static_cast<double>(job.space.gpus)) +
            gib(2);
  job.hardware.host.memory = Bytes(parameters * random.pick<double>({1, 6, 12}));
  return job;
}

}  // namespace

TEST_CASE("what cannot fit by its layers' states does not fit") {
  RandomPlans random(71);
  const int rounds = test_rounds(60);
  int left_out = 0, misfits = 0;
  for (int i = 0; i < rounds; ++i) {
    const SearchJob job = tight_job(random);
    CAPTURE(job.name);
    CAPTURE(to_word(job.recipe->kind));
    const CostModel cost(job.model, *job.recipe, job.hardware, {}, job.cap);
    const ClusterLimits limits = limits_of(job.hardware, job.space.gpus);
    LeastMemory least(cost);
    int number = 0;
    for (const Skeleton& skeleton : skeletons(job.model, *job.recipe, job.hardware, job.space)) {
      each_plan(
          job.model, *job.recipe, job.hardware, job.space, skeleton, [&](const ParallelPlan& plan) {
            if (++number % 37 != 0) return;  // some of each kind
            if (!broken_rule(job.model, plan, *job.recipe, limits).empty()) return;
            const MemoryEstimate memory = cost.memory(plan);
            const bool fits = cost.fits(memory);
            misfits += fits ? 0 : 1;
            CHECK(memory.worst_stage().device * LeastMemory::kRounding >= least.needs(plan).device);
            if (!least.cannot_fit(plan)) return;
            ++left_out;
            CAPTURE(to_string(plan));
            CHECK_FALSE(fits);
          });
    }
  }
  // It is worth asking.
  if (rounds >= 20) CHECK(left_out * 4 > misfits);
}

// Most of them are never folded: their states alone are more than the smallest plan needs.
TEST_CASE("where nothing fits no plan needs less than the smallest") {
  RandomPlans random(73);
  const int rounds = test_rounds(30);
  std::int64_t compared = 0;
  for (int i = 0; i < rounds; ++i) {
    SearchJob job = tight_job(random);
    job.cap = gib(random.pick<double>({0.5, 1, 4}));
    CAPTURE(job.name);
    CAPTURE(to_word(job.recipe->kind));
    CAPTURE(job.space.gpus);
    const CostModel cost(job.model, *job.recipe, job.hardware, {}, job.cap);
    SearchOptions options;
    options.threads = 2;
    const SearchResult found = search(cost, job.space, options);
    if (!found.plans.empty() || !found.smallest) continue;
    const RankedPlan& smallest = *found.smallest;
    CAPTURE(to_string(smallest.plan));
    CHECK(cost.memory(smallest.plan).worst_stage().device == smallest.device_peak);
    const ClusterLimits limits = limits_of(job.hardware, job.space.gpus);
    PlanSifter sifter(cost);
    std::int64_t allowed = 0;
    for (const Skeleton& skeleton : skeletons(job.model, *job.recipe, job.hardware, job.space)) {
      each_plan(job.model, *job.recipe, job.hardware, job.space, skeleton,
                [&](const ParallelPlan& plan) {
                  if (!broken_rule(job.model, plan, *job.recipe, limits).empty()) return;
                  ++allowed;
                  CAPTURE(to_string(plan));
                  CHECK(sifter.check(plan).device_peak >= smallest.device_peak);
                });
    }
    compared += allowed;
    CHECK(found.out_of_memory >= allowed);  // and what was made of them by moving layers
    CHECK(found.bounded_out == 0);
  }
  if (rounds >= 20) CHECK(compared > 100);
}

TEST_CASE("a search that leaves out what cannot fit finds the same plans") {
  RandomPlans random(72);
  const int rounds = test_rounds(60);
  for (int i = 0; i < rounds; ++i) {
    const SearchJob job = tight_job(random);
    CAPTURE(job.name);
    CAPTURE(to_word(job.recipe->kind));
    CAPTURE(job.space.gpus);
    const CostModel cost(job.model, *job.recipe, job.hardware, {}, job.cap);
    SearchOptions options;
    options.top = 3;
    options.threads = 2;
    const SearchResult all = search(cost, job.space, options);
    options.refuses = refuses_states_that_do_not_fit(cost);
    const SearchResult few = search(cost, job.space, options);
    REQUIRE(few.plans.size() == all.plans.size());
    for (std::size_t k = 0; k < all.plans.size(); ++k) {
      CHECK(to_string(few.plans[k].plan) == to_string(all.plans[k].plan));
      CHECK(few.plans[k].step_time == all.plans[k].step_time);
    }
    CHECK(few.considered <= all.considered);
  }
}

// Layers may be moved, too: about the least that some plan of such a job takes, few plans decide.
TEST_CASE("whether any plan fits is what the search for the best finds") {
  RandomPlans random(79);
  const int rounds = test_rounds(60);
  int fits = 0, nothing = 0;
  for (int i = 0; i < rounds; ++i) {
    SearchJob job = tight_job(random);
    CAPTURE(job.name);
    CAPTURE(to_word(job.recipe->kind));
    SearchOptions options;
    options.threads = 2;
    options.top = 1;
    const SearchResult least =
        search(CostModel(job.model, *job.recipe, job.hardware, {}, gib(0.5)), job.space, options);
    if (least.smallest && random.coin(0.7)) {
      job.cap = least.smallest->device_peak * random.pick<double>({0.9, 0.97, 1, 1.1});
    }
    const CostModel cost(job.model, *job.recipe, job.hardware, {}, job.cap);
    const SearchResult best = search(cost, job.space, options);
    const SearchResult any = search_any(cost, job.space, options);
    REQUIRE(any.plans.empty() == best.plans.empty());
    if (any.plans.empty()) {
      ++nothing;
      REQUIRE(any.infeasible.size() == best.infeasible.size());
      for (const auto& [rule, refused] : best.infeasible) {
        CAPTURE(rule);
        REQUIRE(any.infeasible.contains(rule));
        CHECK(any.infeasible.at(rule).plans == refused.plans);
      }
    } else {
      ++fits;
      CHECK(cost.fits(cost.memory(any.plans.front().plan)));
    }
  }
  if (rounds >= 20) CHECK(std::min(fits, nothing) * 10 > rounds);
}

TEST_CASE("of two refusals the first that refuses gives the name") {
  const RefusesPlan one = [](const ParallelPlan& plan) -> std::string_view {
    return plan.tp > 1 ? "one" : "";
  };
  const RefusesPlan other = [](const ParallelPlan&) -> std::string_view { return "other"; };
  ParallelPlan plan;
  CHECK(either(one, other)(plan) == "other");
  CHECK(either({}, other)(plan) == "other");
  CHECK(either(one, {})(plan).empty());
  CHECK_FALSE(static_cast<bool>(either({}, {})));
  plan.tp = 2;
  CHECK(either(one, other)(plan) == "one");
}
