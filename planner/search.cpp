#include "planner/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "planner/enumerate.h"
#include "planner/feasible.h"
#include "planner/parallel_for.h"

namespace qplan {
namespace {

struct Candidate {
  ParallelPlan plan;
  Bytes device_peak;
  Seconds bound;
  Seconds step_time{std::numeric_limits<double>::infinity()};
};

// What one skeleton's plans came to before any simulation.
struct Found {
  std::vector<Candidate> fitting;
  std::map<std::string_view, std::int64_t> infeasible;
  std::int64_t considered = 0, out_of_memory = 0;
  std::optional<Candidate> smallest;
};

Found sift(const CostModel& cost, const SearchSpace& space, const Skeleton& skeleton) {
  Found found;
  PlanSifter sifter(cost);
  const ClusterLimits limits{space.gpus, cost.hardware().gpu.compute_capability};
  each_plan(cost.model(), cost.recipe(), cost.hardware(), space, skeleton,
            [&](const ParallelPlan& plan) {
              ++found.considered;
              const std::string_view rule = broken_rule(cost.model(), plan, cost.recipe(), limits);
              if (!rule.empty()) {
                ++found.infeasible[rule];
                return;
              }
              const PlanSifter::Check check = sifter.check(plan);
              if (check.fits) {
                found.fitting.push_back({plan, check.device_peak, sifter.lower_bound(plan), {}});
                return;
              }
              ++found.out_of_memory;
              if (!found.smallest || check.device_peak < found.smallest->device_peak) {
                found.smallest = Candidate{plan, check.device_peak, {}, {}};
              }
            });
  return found;
}

bool better(const Candidate& a, const Candidate& b) {
  return a.step_time < b.step_time;
}

// Simulates candidates in the order of their bounds, a fixed batch at a time, until no bound is
// below the k-th best time. Returns the simulated ones.
std::vector<Candidate> simulate(const CostModel& cost, const SearchOptions& options,
                                const std::vector<Candidate>& candidates) {
  // Ties in the bound keep the order of enumeration.
  std::vector<std::uint32_t> order(candidates.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const Seconds x = candidates[a].bound, y = candidates[b].bound;
    return x == y ? a < b : x < y;
  });
  constexpr std::size_t kBatch = 32;
  const auto wanted = static_cast<std::size_t>(std::max(options.top, 1));
  std::vector<Candidate> simulated;
  std::vector<double> best;  // times so far, ascending, at most `wanted`
  for (std::size_t done = 0; done < candidates.size();) {
    const double next = candidates[order[done]].bound.value();
    if (options.prune && best.size() == wanted && next > best.back()) break;
    const std::size_t batch = std::min(kBatch, candidates.size() - done);
    for (std::size_t i = 0; i < batch; ++i) simulated.push_back(candidates[order[done + i]]);
    parallel_for(batch, thread_count(options.threads), [&](std::size_t i) {
      Candidate& c = simulated[done + i];
      c.step_time = cost.step_time(c.plan);
    });
    for (std::size_t i = 0; i < batch; ++i) best.push_back(simulated[done + i].step_time.value());
    std::sort(best.begin(), best.end());
    if (best.size() > wanted) best.resize(wanted);
    done += batch;
    if (options.progress) {
      options.progress(0.5 +
                       0.5 * static_cast<double>(done) / static_cast<double>(candidates.size()));
    }
  }
  return simulated;
}

std::vector<RankedPlan> pareto_front(const std::vector<Candidate>& ranked) {
  std::vector<RankedPlan> front;
  Bytes least(std::numeric_limits<double>::infinity());
  for (const Candidate& c : ranked) {  // ascending in time
    if (c.device_peak >= least) continue;
    least = c.device_peak;
    front.push_back({c.plan, c.step_time, c.device_peak});
  }
  return front;
}

SearchResult search_world(const CostModel& cost, const SearchSpace& space,
                          const SearchOptions& options) {
  const std::vector<Skeleton> work = skeletons(cost.model(), cost.recipe(), cost.hardware(), space);
  std::vector<Found> found(work.size());
  std::atomic<std::size_t> finished{0};
  parallel_for(work.size(), thread_count(options.threads), [&](std::size_t i) {
    found[i] = sift(cost, space, work[i]);
    ++finished;
  });
  if (options.progress) options.progress(0.5);

  SearchResult result;
  std::vector<Candidate> candidates;
  for (Found& f : found) {
    for (const auto& [rule, count] : f.infeasible) result.infeasible[std::string(rule)] += count;
    result.considered += f.considered;
    result.out_of_memory += f.out_of_memory;
    const auto& s = f.smallest;
    if (s && (!result.smallest || s->device_peak < result.smallest->device_peak)) {
      result.smallest = RankedPlan{s->plan, s->step_time, s->device_peak};
    }
    std::move(f.fitting.begin(), f.fitting.end(), std::back_inserter(candidates));
  }
  std::vector<Candidate> simulated = simulate(cost, options, candidates);
  result.simulated = static_cast<std::int64_t>(simulated.size());
  result.bounded_out = static_cast<std::int64_t>(candidates.size() - simulated.size());
  std::stable_sort(simulated.begin(), simulated.end(), better);
  for (const Candidate& c : simulated) {
    if (static_cast<int>(result.plans.size()) == options.top) break;
    result.plans.push_back({c.plan, c.step_time, c.device_peak});
  }
  result.pareto = pareto_front(simulated);
  return result;
}

void add_counts(SearchResult& to, const SearchResult& from) {
  to.considered += from.considered;
  to.out_of_memory += from.out_of_memory;
  to.bounded_out += from.bounded_out;
  to.simulated += from.simulated;
  for (const auto& [rule, count] : from.infeasible) to.infeasible[rule] += count;
}

}  // namespace

std::int64_t default_global_batch_size(std::int64_t gpus, std::int64_t seq_len) {
  std::int64_t odd = gpus;
  while (odd % 2 == 0) odd /= 2;
  const double wanted = 4.0 * 1024 * 1024 / static_cast<double>(seq_len);
  const auto multiple = std::llround(wanted / static_cast<double>(odd));
  return std::max<std::int64_t>(multiple, 1) * odd;
}

bool splits_sequence(RecipeKind kind) {
  switch (kind) {
    case RecipeKind::megatron:
    case RecipeKind::megatron_fsdp:
    case RecipeKind::fsdp2_compile:
    case RecipeKind::nanotron:
    case RecipeKind::qplan:
      return true;
    case RecipeKind::megatron_legacy:
    case RecipeKind::megatron_deepspeed:
    case RecipeKind::deepspeed:
    case RecipeKind::fsdp1:
    case RecipeKind::fsdp2:
      return false;
  }
  return false;
}

ParallelPlan default_plan(const ModelSpec&, const Recipe& recipe, std::int64_t gpus,
                          std::int64_t global_batch_size, std::int64_t seq_len) {
  ParallelPlan plan;
  plan.dp = static_cast<int>(gpus);
  plan.global_batch_size = global_batch_size;
  plan.seq_len = seq_len;
  plan.overlap = recipe.default_overlap;
  plan.grad_dtype = recipe.default_grad_dtype;
  plan.zero = recipe.shard_style == ShardStyle::fully_sharded ? 3 : 1;
  if (recipe.kind == RecipeKind::megatron_legacy) plan.zero = 0;  // it has nothing else
  plan.compile = recipe.kind == RecipeKind::fsdp2_compile;
  return plan;
}

SearchResult search(const CostModel& cost, const SearchSpace& space, const SearchOptions& options) {
  if (options.objective == Objective::tokens) return search_world(cost, space, options);
  // Fewer GPUs may be cheaper a token, or simply enough: every world that divides the one asked
  // for.
  SearchResult result;
  double best = std::numeric_limits<double>::infinity();
  for (const int gpus : divisors(space.gpus)) {
    SearchSpace smaller = space;
    smaller.gpus = gpus;
    SearchResult here = search_world(cost, smaller, options);
    add_counts(here, result);
    const bool found = !here.plans.empty();
    const double gpu_seconds = found ? here.plans.front().step_time.value() * gpus
                                     : std::numeric_limits<double>::infinity();
    if (found && gpu_seconds < best) {
      best = gpu_seconds;
      result = std::move(here);
      if (options.objective == Objective::gpus) return result;
    } else {
      const std::optional<RankedPlan> smallest = here.smallest;
      here.plans = std::move(result.plans);
      here.pareto = std::move(result.pareto);
      result = std::move(here);
      if (!result.smallest) result.smallest = smallest;
    }
  }
  return result;
}

}  // namespace qplan
