// How fast is search? Plans a second through each of its stages.
#include <benchmark/benchmark.h>

#include "planner/rules/feasible.h"
#include "planner/search/enumerate.h"
#include "planner/search/search.h"

namespace qplan {
namespace {

struct Job {
  ModelSpec model;
  HardwareProfile hardware = load_hardware("h100-sxm");
  const Recipe& recipe = recipe_of(RecipeKind::megatron);
  SearchSpace space;

  Job(const char* name, std::int64_t gpus, std::int64_t sequences, std::int64_t seq_len)
      : model(load_model(name)) {
    space.gpus = gpus;
    space.global_batch_size = sequences;
    space.seq_len = seq_len;
  }
};

Job qwen3_30b() {
  return {"qwen3-30b-a3b", 256, 1024, 4096};
}
Job gpt3_175b() {
  return {"gpt3-175b", 256, 1536, 2048};
}

// Plans of the job that the rules accept, in the order of the search; at most `count`, evenly
// taken.
std::vector<ParallelPlan> some_plans(const Job& job, std::size_t count) {
  std::vector<ParallelPlan> plans;
  const ClusterLimits limits{job.space.gpus, job.hardware.gpu.compute_capability};
  for (const Skeleton& skeleton : skeletons(job.model, job.recipe, job.hardware, job.space)) {
    each_plan(job.model, job.recipe, job.hardware, job.space, skeleton,
              [&](const ParallelPlan& plan) {
                if (broken_rule(job.model, plan, job.recipe, limits).empty()) plans.push_back(plan);
              });
  }
  if (plans.size() <= count) return plans;
  std::vector<ParallelPlan> chosen;
  for (std::size_t i = 0; i < count; ++i) chosen.push_back(plans[i * plans.size() / count]);
  return chosen;
}

void considered(benchmark::State& state, const Job& job) {
  double plans = 0;
  for (auto _ : state) {
    const CostModel cost(job.model, job.recipe, job.hardware, {});  // an empty memo, as in real use
    SearchOptions options;
    options.threads = static_cast<int>(state.range(0));
    const SearchResult result = search(cost, job.space, options);
    plans += static_cast<double>(result.considered);
    benchmark::DoNotOptimize(result.plans.data());
  }
  state.counters["plans/s"] = benchmark::Counter(plans, benchmark::Counter::kIsRate);
  state.counters["plans"] = benchmark::Counter(plans, benchmark::Counter::kAvgIterations);
}
void search_qwen3_30b(benchmark::State& state) {
  considered(state, qwen3_30b());
}
void search_gpt3_175b(benchmark::State& state) {
  considered(state, gpt3_175b());
}
BENCHMARK(search_qwen3_30b)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(search_gpt3_175b)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();

void enumerated(benchmark::State& state) {
  const Job job = qwen3_30b();
  double plans = 0;
  for (auto _ : state) {
    for (const Skeleton& skeleton : skeletons(job.model, job.recipe, job.hardware, job.space)) {
      each_plan(job.model, job.recipe, job.hardware, job.space, skeleton,
                [&](const ParallelPlan& plan) {
                  ++plans;
                  int tp = plan.tp;  // by value: Google Benchmark 1.9 deprecates const references
                  benchmark::DoNotOptimize(tp);
                });
    }
  }
  state.counters["plans/s"] = benchmark::Counter(plans, benchmark::Counter::kIsRate);
}
BENCHMARK(enumerated)->Unit(benchmark::kMillisecond);

// PlanSifter::check over plans in the search's order, with a warm memo.
void memory_folded(benchmark::State& state, const Job& job) {
  const std::vector<ParallelPlan> plans = some_plans(job, 20000);
  const CostModel cost(job.model, job.recipe, job.hardware, {});
  double checked = 0;
  for (auto _ : state) {
    PlanSifter sifter(cost);
    for (const ParallelPlan& plan : plans) benchmark::DoNotOptimize(sifter.check(plan).fits);
    checked += static_cast<double>(plans.size());
  }
  state.counters["plans/s"] = benchmark::Counter(checked, benchmark::Counter::kIsRate);
}
void memory_folded_qwen3_30b(benchmark::State& state) {
  memory_folded(state, qwen3_30b());
}
void memory_folded_gpt3_175b(benchmark::State& state) {
  memory_folded(state, gpt3_175b());
}
BENCHMARK(memory_folded_qwen3_30b)->Unit(benchmark::kMillisecond);
BENCHMARK(memory_folded_gpt3_175b)->Unit(benchmark::kMillisecond);

// CostModel::step_time over plans of every skeleton; the memo is warm after the first round.
void simulated(benchmark::State& state, const Job& job) {
  const std::vector<ParallelPlan> plans = some_plans(job, 100);
  const CostModel cost(job.model, job.recipe, job.hardware, {});
  double done = 0;
  for (auto _ : state) {
    for (const ParallelPlan& plan : plans) benchmark::DoNotOptimize(cost.step_time(plan).value());
    done += static_cast<double>(plans.size());
  }
  state.counters["plans/s"] = benchmark::Counter(done, benchmark::Counter::kIsRate);
}
void simulated_qwen3_30b(benchmark::State& state) {
  simulated(state, qwen3_30b());
}
void simulated_gpt3_175b(benchmark::State& state) {
  simulated(state, gpt3_175b());
}
BENCHMARK(simulated_qwen3_30b)->Unit(benchmark::kMillisecond);
BENCHMARK(simulated_gpt3_175b)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace qplan
