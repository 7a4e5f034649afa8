#include "planner/search/search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "models/program/loss.h"
#include "planner/rules/feasible.h"
#include "planner/search/default_batch.h"
#include "planner/search/enumerate.h"
#include "planner/search/sieve.h"
#include "tests/properties/search_jobs.h"

using namespace qplan;

namespace {

using P = ParallelPlan;

std::int64_t total(const std::map<std::string, Refused>& refused) {
  return std::accumulate(
      refused.begin(), refused.end(), std::int64_t{0},
      [](std::int64_t sum, const auto& entry) { return sum + entry.second.plans; });
}

std::vector<double> times(const std::vector<RankedPlan>& plans) {
  std::vector<double> result;
  for (const RankedPlan& p : plans) result.push_back(p.step_time.value());
  return result;
}

std::vector<std::string> lines(const std::vector<RankedPlan>& plans) {
  std::vector<std::string> result;
  for (const RankedPlan& p : plans) result.push_back(to_string(p.plan));
  return result;
}

}  // namespace

TEST_CASE("pruning never changes the best plans, every plan is accounted for, all found can run") {
  RandomPlans random(23);
  const int rounds = test_rounds(100);
  for (int i = 0; i < rounds; ++i) {
    const SearchJob job = random_search_job(random);
    CAPTURE(i);
    CAPTURE(job.name);
    CAPTURE(to_word(job.recipe->kind));
    CAPTURE(job.space.gpus);
    const CostModel cost(job.model, *job.recipe, job.hardware, {}, job.cap);
    SearchOptions options;
    options.top = 5;
    options.threads = 2;
    const SearchResult pruned = search(cost, job.space, options);
    options.prune = false;
    const SearchResult whole = search(cost, job.space, options);
    CHECK(times(pruned.plans) == times(whole.plans));
    // Layouts that could not win are not made at all.
    CHECK(pruned.considered <= whole.considered);
    CHECK(whole.bounded_out == 0);
    for (const SearchResult* r : {&pruned, &whole}) {
      CHECK(r->considered ==
            total(r->infeasible) + r->out_of_memory + r->bounded_out + r->simulated);
      CHECK(r->plans.empty() == (r->simulated == 0));
      for (const RankedPlan& p : r->plans) {
        const std::string line = to_string(p.plan);
        CAPTURE(line);
        CHECK(broken_rule(job.model, p.plan, *job.recipe,
                          {job.space.gpus, job.hardware.gpu.compute_capability}) == "");
        CHECK(cost.fits(cost.memory(p.plan)));
        CHECK(cost.memory(p.plan).worst_stage().device == p.device_peak);
        CHECK(cost.step_time(p.plan) == p.step_time);
        CHECK(cost.lower_bound(p.plan).step <= p.step_time * (1 + 1e-12));
        CHECK(p.plan.world() == job.space.gpus);
      }
    }
    // With nothing that fits, the smallest is named, and it really does not fit.
    if (whole.plans.empty() && whole.out_of_memory > 0) {
      REQUIRE(whole.smallest.has_value());
      CHECK_FALSE(cost.fits(cost.memory(whole.smallest->plan)));
    }
  }
}

// A hybrid of 512 small experts on 32 nodes of 8: experts are spread, little else is, for tensor
// and context parallelism cost more than they save at 4096 tokens.
TEST_CASE("a hybrid's best plan on 256 GPUs spreads its experts, and fits") {
  const ModelSpec model = load_model("qwen3-next-80b-a3b");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const CostModel cost(model, recipe_of(RecipeKind::megatron), hardware, {});
  SearchSpace space;
  space.gpus = 256;
  space.job.global_batch_size = 1024;
  space.job.seq_len = 4096;
  const SearchResult found = search(cost, space, {});
  REQUIRE_FALSE(found.plans.empty());
  const ParallelPlan& best = found.plans[0].plan;
  CAPTURE(to_string(best));
  CHECK(best.ep >= 8);
  CHECK(best.tp <= 2);
  CHECK(best.cp == 1);
  CHECK(cost.fits(cost.memory(best)));
}

TEST_CASE("a search gives the same answer on one, two and eight threads") {
  RandomPlans random(29);
  const int rounds = test_rounds(8);
  for (int i = 0; i < rounds; ++i) {
    const SearchJob job = random_search_job(random);
    CAPTURE(i);
    CAPTURE(job.name);
    std::vector<SearchResult> results;
    for (const int threads : {1, 2, 8}) {
      const CostModel cost(job.model, *job.recipe, job.hardware, {}, job.cap);
      SearchOptions options;
      options.threads = threads;
      results.push_back(search(cost, job.space, options));
    }
    for (const SearchResult& r : results) {
      CHECK(lines(r.plans) == lines(results[0].plans));
      CHECK(times(r.plans) == times(results[0].plans));
      CHECK(lines(r.pareto) == lines(results[0].pareto));
      CHECK(r.infeasible == results[0].infeasible);
      CHECK(r.considered == results[0].considered);
      CHECK(r.out_of_memory == results[0].out_of_memory);
      CHECK(r.simulated == results[0].simulated);
    }
  }
}

// A sifter remembers blocks from plan to plan; the cost model alone begins anew each time.
TEST_CASE("whatever a sifter has seen, it says of a plan what the cost model says alone") {
  RandomPlans random(29);
  std::int64_t compared = 0;
  for (int round = 0; round < test_rounds(40); ++round) {
    SearchJob job = random_search_job(random);
    job.space[&P::offload] = {};
    job.space[&P::schedule] = {ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
                               ScheduleKind::zb_h1};
    CAPTURE(round);
    CAPTURE(job.name);
    const CostModel cost(job.model, *job.recipe, job.hardware, {}, job.cap);
    const ClusterLimits limits{job.space.gpus, job.hardware.gpu.compute_capability};
    for (const Skeleton& skeleton : skeletons(job.model, *job.recipe, job.hardware, job.space)) {
      PlanSifter sifter(cost);
      std::int64_t plans = 0;
      each_plan(job.model, *job.recipe, job.hardware, job.space, skeleton,
                [&](const ParallelPlan& plan) {
                  if (!broken_rule(job.model, plan, *job.recipe, limits).empty()) return;
                  const PlanSifter::Check check = sifter.check(plan);
                  const StepBound bound = sifter.own_work_bound(plan);
                  if (plans++ % 5 != 0) return;  // all are sifted, a few asked again
                  ++compared;
                  CAPTURE(to_string(plan));
                  const MemoryEstimate memory = cost.memory(plan);
                  CHECK(check.device_peak == memory.worst_stage().device);
                  CHECK(check.fits == cost.fits(memory));
                  const StepBound alone = cost.own_work_bound(plan);
                  CHECK(bound.step == alone.step);
                  CHECK(bound.evened == alone.evened);
                });
    }
  }
  CHECK(compared > 10 * test_rounds(40));
}

TEST_CASE("no plan of a family does less than the family's bound says") {
  RandomPlans random(37);
  const std::vector<std::string> of_other_kinds = {"moonlight-16b-a3b", "qwen3-next-80b-a3b",
                                                   "nemotron-h-8b", "llama4-scout-17b-16e"};
  std::int64_t compared = 0, above = 0, shared = 0, families = 0;
  for (int round = 0; round < test_rounds(40); ++round) {
    SearchJob job = random_search_job(random);
    if (round % 2 == 1) job.name = random.pick(of_other_kinds);
    job.model = load_model(job.name);
    job.space[&P::recompute] = {};  // all that there is
    job.space[&P::offload] = {};
    if (round % 4 == 0) {
      const auto grad = set_of(OverlapKind::grad),
                 both = set_of(OverlapKind::grad, OverlapKind::ep);
      job.space[&P::overlap] = {grad, both};
      job.space[&P::schedule] = {ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
                                 ScheduleKind::zb_h1, ScheduleKind::dualpipe};
    }
    CAPTURE(round);
    CAPTURE(job.name);
    const CostModel cost(job.model, *job.recipe, job.hardware, {}, job.cap);
    const SearchOptions options;
    HeldStates states(cost, options);
    for (const Skeleton& skeleton : skeletons(job.model, *job.recipe, job.hardware, job.space)) {
      PlanSifter sifter(cost);
      const Ruled ruled = ask_rules(cost, job.space, options, skeleton, states);
      for (const BoundedFamily& f : ruled.families) {
        ++families;
        shared += f.of_schedule ? 0 : 1;
        std::size_t place = 0;
        each_plan(f.family, [&](const ParallelPlan& plan) {
          if (!f.allowed[place++]) return;
          CAPTURE(to_string(plan));
          const StepBound own = sifter.own_work_bound(plan);
          constexpr double kRounding = 1 + 1e-12;
          CHECK(f.bound.step <= own.step * kRounding);
          CHECK(f.bound.evened <= own.evened * kRounding);
          ++compared;
          above += own.step > f.bound.step * 1.01 ? 1 : 0;
        });
        CHECK(place == f.allowed.size());
      }
    }
  }
  CHECK(compared > 50 * test_rounds(40));
  CHECK(above > compared / 10);
  CHECK(shared > families / 10);
}

TEST_CASE(
    "a loss follows from whether the plan is deterministic, whichever words take several values") {
  const ModelSpec model = load_model("tiny");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const Recipe& recipe = recipe_of(RecipeKind::megatron);
  for (const std::vector<bool>& asked : {std::vector<bool>{true}, std::vector<bool>{false, true}}) {
    SearchSpace space;
    space.gpus = 2;
    space.job.global_batch_size = 4;
    space.job.seq_len = 512;
    space[&P::deterministic] = asked;
    std::set<bool> seen;
    each_plan(model, recipe, hardware, space, {1, 1, 1, 2}, [&](const ParallelPlan& plan) {
      seen.insert(plan.deterministic);
      CHECK(plan.loss == loss_word(LossKind::by_framework, plan.deterministic, recipe));
    });
    CHECK(seen == std::set<bool>(asked.begin(), asked.end()));
  }
}

TEST_CASE("plans come best first, and no plan of the front is worse in both time and memory") {
  RandomPlans random(31);
  const SearchJob job = random_search_job(random);
  const CostModel cost(job.model, *job.recipe, job.hardware, {});
  const SearchResult result = search(cost, job.space, {});
  for (std::size_t i = 1; i < result.plans.size(); ++i) {
    CHECK(result.plans[i - 1].step_time <= result.plans[i].step_time);
  }
  for (const RankedPlan& a : result.pareto) {
    for (const RankedPlan& b : result.pareto) {
      CHECK_FALSE((a.step_time < b.step_time && a.device_peak < b.device_peak));
    }
  }
}

TEST_CASE("enumeration names every plan once, whatever the framework") {
  const HardwareProfile hardware = load_hardware("h100-sxm");
  for (const auto& [kind, word] : Words<RecipeKind>::table) {
    for (const std::string name : {"tiny", "tiny-moe"}) {
      CAPTURE(std::string(word));
      CAPTURE(name);
      const ModelSpec model = load_model(name);
      SearchSpace space;
      space.gpus = 8;
      space.job.global_batch_size = 16;
      space.job.seq_len = 512;
      space[&P::micro_batch_size] = {1};
      space[&P::compile] = {false, true};
      std::vector<std::string> all;
      for (const Skeleton& skeleton : skeletons(model, recipe_of(kind), hardware, space)) {
        each_plan(model, recipe_of(kind), hardware, space, skeleton,
                  [&](const ParallelPlan& plan) { all.push_back(to_string(plan)); });
      }
      CHECK(all.size() > 10);
      const auto compiled = [](const std::string& line) {
        return line.find("compile") != std::string::npos;
      };
      CHECK(std::any_of(all.begin(), all.end(), compiled));
      std::sort(all.begin(), all.end());
      CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
    }
  }
}

TEST_CASE("a pipeline of torchtitan's is named by one ZeRO stage, for its stages do the same") {
  const ModelSpec model = load_model("tiny");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const auto stages = [&](int pp, std::vector<int> asked) {
    SearchSpace space;
    space.gpus = 4;
    space.job.global_batch_size = 16;
    space.job.seq_len = 512;
    space[&P::zero] = std::move(asked);
    std::set<int> seen;
    each_plan(model, recipe_of(RecipeKind::fsdp2_compile), hardware, space, {1, 1, pp, 4 / pp},
              [&](const ParallelPlan& plan) { seen.insert(plan.zero); });
    return seen;
  };
  CHECK(stages(1, {}) == std::set<int>{2, 3});
  CHECK(stages(2, {}) == std::set<int>{2});
  CHECK(stages(2, {3}) == std::set<int>{3});  // whoever asks for it
}

TEST_CASE("micro-batches are powers of two, and what else divides a rank's sequences") {
  const ModelSpec model = load_model("tiny");
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const auto sizes = [&](std::int64_t batch, int dp, std::int64_t seq_len = 4096,
                         RecipeKind recipe = RecipeKind::megatron) {
    SearchSpace space;
    space.gpus = dp;
    space.job.seq_len = seq_len;
    space.job.global_batch_size = batch;
    std::set<std::int64_t> seen;
    each_plan(model, recipe_of(recipe), hardware, space, {1, 1, 1, dp},
              [&](const ParallelPlan& plan) { seen.insert(plan.micro_batch_size); });
    return seen;
  };
  CHECK(sizes(1024, 128) == std::set<std::int64_t>{1, 2, 4, 8});
  CHECK(sizes(1024, 32) == std::set<std::int64_t>{1, 2, 4, 8});
  CHECK(sizes(1024, 32, 1024) == std::set<std::int64_t>{1, 2, 4, 8, 16, 32});
  CHECK(sizes(1026, 18) == std::set<std::int64_t>{1, 2, 3, 4, 8});
  CHECK(sizes(420, 1) == std::set<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8});
  // Parameters gathered for each microbatch.
  CHECK(sizes(1024, 64, 4096, RecipeKind::fsdp2) == std::set<std::int64_t>{1, 2, 4, 8, 16});
  CHECK(sizes(1024, 64, 4096, RecipeKind::qplan) == std::set<std::int64_t>{1, 2, 4, 8, 16});
}

// A batch that layouts cannot divide costs most of a step: 1023 sequences on 96 GPUs had 9% of the
// peak where 960 had 30%.
TEST_CASE("with the default batch the best plan is nearly as good as with any batch beside it") {
  RandomPlans random(37);
  const HardwareProfile hardware = load_hardware("h100-sxm");
  const auto mfu = [&](const ModelSpec& model, std::int64_t gpus, std::int64_t batch) {
    const CostModel cost(model, recipe_of(RecipeKind::megatron), hardware, {});
    SearchSpace space;
    space.gpus = gpus;
    space.job.global_batch_size = batch;
    // What is chosen beside them does not depend on the batch.
    space[&P::recompute] = {Recompute{}, Recompute{RecomputeKind::full, {}, 0}};
    space[&P::offload] = {Offload{}};
    space[&P::cp] = {1};
    SearchOptions options;
    options.top = 1;
    const SearchResult found = search(cost, space, options);
    return found.plans.empty() ? 0.0 : cost.evaluate(found.plans.front().plan).mfu;
  };
  struct Sample {
    std::string model;
    std::int64_t gpus;
  };
  std::vector<Sample> samples = {
      {"llama3-8b", 96}, {"llama3-405b", 100000}, {"llama3-70b", 131072}};
  const int rounds = test_rounds(6);
  for (int i = 0; i < rounds; ++i) {
    samples.push_back({random.pick<std::string>({"llama3-8b", "llama3-70b"}),
                       random.pick<std::int64_t>({24, 36, 63, 72, 100, 120, 130, 144, 168, 200, 384,
                                                  448, 640, 900, 1000, 1120, 1536, 1900, 2000})});
  }
  for (const Sample& sample : samples) {
    CAPTURE(sample.model);
    CAPTURE(sample.gpus);
    const ModelSpec model = load_model(sample.model);
    const std::int64_t batch = default_global_batch_size(sample.gpus, 4096);
    CAPTURE(batch);
    const double own = mfu(model, sample.gpus, batch);
    CHECK(own > 0);
    const auto tokens = static_cast<double>(default_tokens(sample.gpus)) / 4096;
    for (const double share : {0.8, 0.9, 1.0, 1.1, 1.25}) {
      // The numbers that people would think of: the round one, and the GPUs' multiple.
      const auto round = static_cast<std::int64_t>(tokens * share);
      const std::int64_t multiple = std::max<std::int64_t>(1, round / sample.gpus) * sample.gpus;
      const std::int64_t other = random.pick<std::int64_t>({round, multiple});
      if (static_cast<double>(other) > 1.3 * tokens) continue;
      CAPTURE(other);
      CHECK(own >= 0.93 * mfu(model, sample.gpus, other));
    }
  }
}

TEST_CASE(
    "plans that their job refuses are not found, leave room for what is beside them, and are "
    "counted once") {
  RandomPlans random(29);
  const int rounds = test_rounds(30);
  for (int i = 0; i < rounds; ++i) {
    const SearchJob job = random_search_job(random);
    CAPTURE(i);
    CAPTURE(job.name);
    const CostModel cost(job.model, *job.recipe, job.hardware, {}, job.cap);
    SearchOptions options;
    options.top = 3;
    options.beside = gib(1);
    options.accepts = [](const ParallelPlan& plan) { return plan.micro_batch_size != 1; };
    const SearchResult pruned = search(cost, job.space, options);
    options.prune = false;
    const SearchResult whole = search(cost, job.space, options);
    CHECK(times(pruned.plans) == times(whole.plans));
    for (const SearchResult* r : {&pruned, &whole}) {
      CHECK(r->considered ==
            total(r->infeasible) + r->out_of_memory + r->bounded_out + r->simulated);
      for (const RankedPlan& p : r->plans) {
        CHECK(p.plan.micro_batch_size != 1);
        CHECK(p.device_peak + options.beside <= cost.capacity());
      }
    }
  }
}

TEST_CASE("how many plans are considered does not depend on how many are shown") {
  RandomPlans random(41);
  const int rounds = test_rounds(12);
  for (int i = 0; i < rounds; ++i) {
    const SearchJob job = random_search_job(random);
    CAPTURE(i);
    CAPTURE(job.name);
    std::vector<SearchResult> results;
    for (const int top : {1, 3, 10, 40}) {
      const CostModel cost(job.model, *job.recipe, job.hardware, {}, job.cap);
      SearchOptions options;
      options.top = top;
      results.push_back(search(cost, job.space, options));
    }
    for (const SearchResult& r : results) {
      CHECK(r.considered == results[0].considered);
      CHECK(r.infeasible == results[0].infeasible);
      // Whether a plan fits is asked of more plans where more than ten are kept.
      if (&r == &results.back()) {
        CHECK(r.out_of_memory >= results[0].out_of_memory);
      } else {
        CHECK(r.out_of_memory == results[0].out_of_memory);
      }
      for (std::size_t k = 0; k < std::min(r.plans.size(), results[0].plans.size()); ++k) {
        CHECK(to_string(r.plans[k].plan) == to_string(results[0].plans[k].plan));
      }
    }
  }
}
