#include "planner/search/search.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "models/program/step_program.h"
#include "planner/rules/feasible.h"
#include "planner/search/enumerate.h"
#include "planner/search/layout.h"
#include "planner/search/parallel_for.h"

namespace qplan {
namespace {

// As many plans are looked for whoever wants fewer, and layouts are tried for as many whoever wants
// more, so that what is considered does not depend on how much is shown.
constexpr std::size_t kFewest = 10;

constexpr Seconds kNever(std::numeric_limits<double>::infinity());

struct Candidate {
  ParallelPlan plan;
  Bytes device_peak;
  StepBound own_work;  // by CostModel::own_work_bound()
  Seconds step_time = kNever;
  bool refused = false;  // by SearchOptions::accepts
};

// Hundreds of thousands, half a kilobyte each: they stay where they were found.
using Fitting = std::vector<const Candidate*>;

// What one skeleton's plans came to before any simulation.
struct Found {
  std::deque<Candidate> fitting;
  std::map<std::string_view, std::int64_t> infeasible;
  std::int64_t considered = 0, out_of_memory = 0;
  std::optional<Candidate> smallest;
};

// Asks rules and memory of one plan and notes the answer.
void judge(const CostModel& cost, const SearchSpace& space, const SearchOptions& options,
           const ParallelPlan& plan, PlanSifter& sifter, Found& found) {
  ++found.considered;
  const ClusterLimits limits = limits_of(cost.hardware(), space.gpus, cost.kinds());
  std::string_view rule = broken_rule(cost.model(), plan, cost.recipe(), limits);
  if (rule.empty() && options.refuses) rule = options.refuses(plan);
  if (!rule.empty()) {
    ++found.infeasible[rule];
    return;
  }
  const PlanSifter::Check check = sifter.check(plan);
  if (check.fits && check.device_peak + options.beside <= cost.capacity()) {
    found.fitting.push_back({plan, check.device_peak, sifter.own_work_bound(plan), kNever, false});
    return;
  }
  ++found.out_of_memory;
  if (!found.smallest || check.device_peak < found.smallest->device_peak) {
    found.smallest = Candidate{plan, check.device_peak, {}, {}, false};
  }
}

Found sift(const CostModel& cost, const SearchSpace& space, const SearchOptions& options,
           const Skeleton& skeleton) {
  Found found;
  PlanSifter sifter(cost);
  each_plan(cost.model(), cost.recipe(), cost.hardware(), space, skeleton,
            [&](const ParallelPlan& plan) { judge(cost, space, options, plan, sifter, found); });
  return found;
}

bool better(const Candidate& a, const Candidate& b) {
  return a.step_time < b.step_time;
}

// The k best step times so far, ascending.
class BestTimes {
 public:
  explicit BestTimes(int wanted) : wanted_(static_cast<std::size_t>(std::max(wanted, 1))) {}
  void add(Seconds time) {
    times_.insert(std::upper_bound(times_.begin(), times_.end(), time), time);
    if (times_.size() > wanted_) times_.pop_back();
  }
  // Whether a step that takes at least this long changes nothing, of all that are kept or of the
  // first few.
  [[nodiscard]] bool rules_out(Seconds bound) const { return rules_out(bound, wanted_); }
  [[nodiscard]] bool rules_out(Seconds bound, std::size_t few) const {
    return times_.size() >= few && bound > times_[few - 1];
  }

 private:
  std::size_t wanted_;
  std::vector<Seconds> times_;
};

// Candidates in the order of their lower bounds, equal ones as they were enumerated. A bound is
// asked for when that of the candidate's own work no longer keeps it behind the others.
class ByBound {
 public:
  ByBound(const CostModel& cost, const Fitting& candidates, int threads)
      : cost_(cost), candidates_(candidates), threads_(threads) {
    std::vector<Bounded> all(candidates.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = {candidates[i]->own_work.step, i};
    waiting_ = std::priority_queue<Bounded>({}, std::move(all));
  }

  // The next candidate's index and bound; nothing when there are no more.
  struct Bounded {
    Seconds bound;
    std::size_t index;
    bool operator<(const Bounded& other) const {  // the heap's top is the first
      return bound == other.bound ? index > other.index : other.bound < bound;
    }
  };
  std::optional<Bounded> first() {
    while (!waiting_.empty() &&
           (bounded_.empty() || waiting_.top().bound <= bounded_.top().bound)) {
      ask();
    }
    if (bounded_.empty()) return std::nullopt;
    return bounded_.top();
  }
  void pop() { bounded_.pop(); }

 private:
  void ask() {
    constexpr std::size_t kBatch = 64;
    std::vector<Bounded> batch;
    for (; batch.size() < kBatch && !waiting_.empty(); waiting_.pop()) {
      batch.push_back(waiting_.top());
    }
    parallel_for(batch.size(), threads_, [&](std::size_t i) {
      batch[i].bound = cost_.lower_bound(candidates_[batch[i].index]->plan).step;
    });
    for (const Bounded& asked : batch) bounded_.push(asked);
  }

  const CostModel& cost_;
  const Fitting& candidates_;
  int threads_;
  std::priority_queue<Bounded> waiting_;  // by the bound of their own work
  std::priority_queue<Bounded> bounded_;
};

// Simulates candidates in the order of their bounds, a fixed batch at a time, until no bound is
// below the k-th best time. Returns the simulated ones.
std::vector<Candidate> simulate(const CostModel& cost, const SearchOptions& options,
                                const Fitting& candidates, BestTimes& best) {
  const int threads = thread_count(options.threads);
  ByBound queue(cost, candidates, threads);
  constexpr std::size_t kBatch = 32;
  std::vector<Candidate> simulated;
  while (const auto next = queue.first()) {
    if (options.prune && best.rules_out(next->bound)) break;
    const std::size_t done = simulated.size();
    for (auto first = next; first && simulated.size() < done + kBatch; first = queue.first()) {
      simulated.push_back(*candidates[first->index]);
      queue.pop();
    }
    parallel_for(simulated.size() - done, threads, [&](std::size_t i) {
      Candidate& c = simulated[done + i];
      c.step_time = cost.step_time(c.plan);
    });
    for (std::size_t i = done; i < simulated.size(); ++i) {
      Candidate& c = simulated[i];
      c.refused = options.accepts && !best.rules_out(c.step_time) && !options.accepts(c.plan);
      if (!c.refused) best.add(c.step_time);
    }
    if (options.progress) {
      options.progress(0.5 + 0.5 * static_cast<double>(simulated.size()) /
                                 static_cast<double>(candidates.size()));
    }
  }
  return simulated;
}

// Whether moving layers between stages may make a plan one of the fastest so far. Where each
// chunk recomputes a number of its layers, other chunks recompute others, and no bound holds.
bool worth_evening(const CostModel& cost, const Candidate& c, const BestTimes& best, bool prune) {
  constexpr double kWorthwhile = 1.01;  // less than that no prediction can tell
  if (prune && best.rules_out(c.own_work.evened, kFewest)) return false;
  if (c.plan.pp == 1 || c.plan.schedule == ScheduleKind::dualpipe) return false;
  if (c.plan.recompute.layers != 0) return false;
  const StepBound bound = cost.lower_bound(c.plan);
  return bound.imbalance >= kWorthwhile && !(prune && best.rules_out(bound.evened, kFewest));
}

// Plans that fit once more, with layers moved away from the busiest pipeline rank: the one with the
// head, where a large vocabulary weighs as much as several layers.
std::vector<Found> even_out(const CostModel& cost, const SearchSpace& space,
                            const SearchOptions& options, const Fitting& candidates,
                            const BestTimes& best) {
  if (!space.job.pipeline_layout.empty() || !cost.recipe().can.takes_layout) return {};
  const int threads = thread_count(options.threads);
  std::vector<std::uint8_t> worth(candidates.size());
  parallel_for(candidates.size(), threads, [&](std::size_t i) {
    worth[i] = worth_evening(cost, *candidates[i], best, options.prune) ? 1 : 0;
  });
  std::vector<const ParallelPlan*> plans;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (worth[i] != 0) plans.push_back(&candidates[i]->plan);
  }
  constexpr std::size_t kBatch = 64;  // neighbours share what a sifter remembers
  std::vector<Found> found((plans.size() + kBatch - 1) / kBatch);
  parallel_for(found.size(), threads, [&](std::size_t b) {
    PlanSifter sifter(cost);
    for (std::size_t i = b * kBatch; i < std::min(plans.size(), (b + 1) * kBatch); ++i) {
      ParallelPlan plan = *plans[i];
      plan.pipeline_layout = balanced_layout(cost.model().num_layers, plan, cost.end_work(plan));
      if (plan.pipeline_layout.empty()) continue;
      if (plan.pipeline_layout == stage_layers(cost.model(), *plans[i])) continue;
      judge(cost, space, options, plan, sifter, found[b]);
    }
  });
  return found;
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

// What was found, counted in `result`; returns what fits, which `found` keeps.
Fitting gather(const std::vector<Found>& found, SearchResult& result) {
  Fitting candidates;
  for (const Found& f : found) {
    for (const auto& [rule, count] : f.infeasible) result.infeasible[std::string(rule)] += count;
    result.considered += f.considered;
    result.out_of_memory += f.out_of_memory;
    const auto& s = f.smallest;
    if (s && (!result.smallest || s->device_peak < result.smallest->device_peak)) {
      result.smallest = RankedPlan{s->plan, s->step_time, s->device_peak};
    }
    for (const Candidate& c : f.fitting) candidates.push_back(&c);
  }
  return candidates;
}

// They fit by themselves, and not in their job.
void leave_out_refused(std::vector<Candidate>& simulated, SearchResult& result) {
  for (const Candidate& c : simulated) {
    if (!c.refused) continue;
    ++result.out_of_memory;
    --result.simulated;  // each is counted once
    if (!result.smallest) result.smallest = RankedPlan{c.plan, c.step_time, c.device_peak};
  }
  std::erase_if(simulated, [](const Candidate& c) { return c.refused; });
}

SearchResult search_world(const CostModel& cost, const SearchSpace& space,
                          const SearchOptions& options) {
  const std::vector<Skeleton> work = skeletons(cost.model(), cost.recipe(), cost.hardware(), space);
  std::vector<Found> found(work.size());
  std::atomic<std::size_t> finished{0};
  parallel_for(work.size(), thread_count(options.threads), [&](std::size_t i) {
    found[i] = sift(cost, space, options, work[i]);
    ++finished;
  });
  if (options.progress) options.progress(0.5);

  SearchResult result;
  BestTimes best(std::max(options.top, static_cast<int>(kFewest)));
  const Fitting candidates = gather(found, result);
  std::vector<Candidate> simulated = simulate(cost, options, candidates, best);
  const std::vector<Found> found_even = even_out(cost, space, options, candidates, best);
  const Fitting even = gather(found_even, result);
  const std::int64_t fitting = std::ssize(candidates) + std::ssize(even);
  std::vector<Candidate> evened = simulate(cost, options, even, best);
  std::move(evened.begin(), evened.end(), std::back_inserter(simulated));
  result.simulated = std::ssize(simulated);
  result.bounded_out = fitting - result.simulated;
  leave_out_refused(simulated, result);
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

bool splits_sequence(RecipeKind kind) {
  return recipe_of(kind).can.sequence_split == SequenceSplit::unasked;
}

ParallelPlan default_plan(const ModelSpec&, const Recipe& recipe, std::int64_t gpus,
                          std::int64_t global_batch_size, std::int64_t seq_len) {
  ParallelPlan plan;
  plan.dp = static_cast<int>(gpus);
  plan.global_batch_size = global_batch_size;
  plan.seq_len = seq_len;
  plan.overlap = recipe.defaults.overlap;
  plan.grad_dtype = recipe.defaults.grad_dtype;
  plan.zero = recipe.defaults.zero;
  plan.compile = recipe.defaults.compile;
  return plan;
}

DType default_grad_dtype(const Recipe& recipe, Precision precision) {
  const bool narrow = recipe.defaults.grad_dtype != DType::fp32;
  return narrow && precision == Precision::fp16 ? DType::fp16 : recipe.defaults.grad_dtype;
}

CpComm default_cp_comm(const ModelSpec& model, const ParallelPlan& plan, const Recipe& recipe) {
  CpComm best = plan.cp_comm;
  std::size_t fewest = std::numeric_limits<std::size_t>::max();
  for (const auto& [kind, word] : Words<CpComm>::table) {
    if (!recipe.can.cp_exchanges.has(kind)) continue;
    ParallelPlan tried = plan;
    tried.cp_comm = kind;
    const std::size_t broken = why_infeasible(model, tried, recipe, {}).size();
    if (broken >= fewest) continue;
    fewest = broken;
    best = kind;
  }
  return best;
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
