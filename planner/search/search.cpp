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
  Seconds step_time = kNever;
  bool refused = false;  // by SearchOptions::accepts
};

enum class Room : std::uint8_t { unknown, fits, too_small };

// A plan that the rules allow.
struct Allowed {
  ParallelPlan plan;
  Bytes device_peak{};
  Room room = Room::unknown;
};

// Plans, one enumerated after the other, that differ only in where their states live.
struct Siblings {
  std::vector<Allowed*> plans;  // without those that are known not to fit
  StepBound own_work;           // by CostModel::own_work_bound()
};

// What one skeleton's plans came to before any simulation.
struct Found {
  std::deque<Allowed> allowed;  // hundreds of thousands, half a kilobyte each: they stay in place
  std::vector<Siblings> siblings;
  std::map<std::string_view, std::int64_t> infeasible;
  std::int64_t considered = 0, out_of_memory = 0;
  std::optional<RankedPlan> smallest;  // of those that do not fit

  void misfit(const Allowed& plan) {
    ++out_of_memory;
    if (smallest && smallest->device_peak <= plan.device_peak) return;
    smallest = RankedPlan{plan.plan, Seconds(0), plan.device_peak};
  }
};

// Finds out whether the plan fits.
void weigh(const CostModel& cost, const SearchOptions& options, PlanSifter& sifter,
           Allowed& allowed) {
  if (allowed.room != Room::unknown) return;
  const PlanSifter::Check check = sifter.check(allowed.plan);
  const bool fits = check.fits && check.device_peak + options.beside <= cost.capacity();
  allowed.device_peak = check.device_peak;
  allowed.room = fits ? Room::fits : Room::too_small;
}

// Asks the rules of each plan, and then its memory or the bound of its work, whichever is likelier
// to spare the other: what cannot fit needs no bound, and of what cannot be fast nobody asks
// whether it fits. Most plans of a skeleton fit, or few do: memory comes first as long as nothing
// fits, and now and then.
class Sieve {
 public:
  Sieve(const CostModel& cost, const SearchSpace& space, const SearchOptions& options)
      : cost_(cost),
        options_(options),
        sifter_(cost),
        limits_(limits_of(cost.hardware(), space.gpus, cost.kinds())) {}

  void judge(const ParallelPlan& plan) {
    ++found_.considered;
    std::string_view rule = broken_rule(cost_.model(), plan, cost_.recipe(), limits_);
    if (rule.empty() && options_.refuses) rule = options_.refuses(plan);
    if (!rule.empty()) {
      ++found_.infeasible[rule];
      return;
    }
    if (sifter_.look_at(plan)) begin();
    Allowed allowed{plan};
    if (weighs_) weigh(cost_, options_, sifter_, allowed);
    if (allowed.room == Room::too_small) return found_.misfit(allowed);
    if (!fits_) found_.siblings.push_back({{}, sifter_.own_work_bound(plan)});
    fits_ = true;
    found_.siblings.back().plans.push_back(&found_.allowed.emplace_back(std::move(allowed)));
  }
  Found take() { return std::move(found_); }

 private:
  // The siblings before are all there.
  void begin() {
    constexpr int kNowAndThen = 16;
    if (weighs_) unweighed_ = fits_ ? 0 : kNowAndThen;
    weighs_ = ++unweighed_ > kNowAndThen;
    fits_ = false;
  }

  const CostModel& cost_;
  const SearchOptions& options_;
  PlanSifter sifter_;
  ClusterLimits limits_;
  Found found_;
  bool weighs_ = true;  // these siblings
  bool fits_ = false;   // one of them may
  int unweighed_ = 0;   // siblings since the last that were weighed
};

Found sift(const CostModel& cost, const SearchSpace& space, const SearchOptions& options,
           const Skeleton& skeleton) {
  Sieve sieve(cost, space, options);
  each_plan(cost.model(), cost.recipe(), cost.hardware(), space, skeleton,
            [&](const ParallelPlan& plan) { sieve.judge(plan); });
  return sieve.take();
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

// Plans that fit in the order of their lower bounds, equal ones as they were enumerated. Memory and
// a bound are asked for when the bound of a plan's own work no longer keeps it behind the others.
class ByBound {
 public:
  ByBound(const CostModel& cost, const SearchOptions& options, const std::vector<Siblings>& all)
      : cost_(cost), options_(options), all_(all), threads_(thread_count(options.threads)) {
    std::vector<Bounded<std::size_t>> waiting;
    waiting.reserve(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) waiting.push_back({all[i].own_work.step, i, i});
    waiting_ = Heap<std::size_t>({}, std::move(waiting));
  }

  template <class What>
  struct Bounded {
    Seconds bound;
    std::size_t number;  // as enumerated
    What what;
    bool operator<(const Bounded& other) const {  // the heap's top is the first
      return bound == other.bound ? number > other.number : other.bound < bound;
    }
  };
  using BoundedPlan = Bounded<const Allowed*>;

  // The next plan; nothing when there are no more, or none that `best` does not rule out.
  std::optional<BoundedPlan> first(const BestTimes& best) {
    while (!waiting_.empty() && !hopeless(waiting_.top().bound, best) &&
           (bounded_.empty() || waiting_.top().bound <= bounded_.top().bound)) {
      ask();
    }
    if (bounded_.empty() || hopeless(bounded_.top().bound, best)) return std::nullopt;
    return bounded_.top();
  }
  void pop() { bounded_.pop(); }

  // How much of what there is to ask was asked, 0..1.
  [[nodiscard]] double progress() const {
    return 1 - static_cast<double>(waiting_.size()) / static_cast<double>(all_.size());
  }

 private:
  template <class What>
  using Heap = std::priority_queue<Bounded<What>>;

  [[nodiscard]] bool hopeless(Seconds bound, const BestTimes& best) const {
    return options_.prune && best.rules_out(bound);
  }

  // Of the next siblings, of more at once the less fits. Those that were enumerated near each other
  // share what a sifter remembers.
  void ask() {
    constexpr std::size_t kParts = 8;
    std::vector<std::size_t> batch;
    for (; batch.size() < at_once_ && !waiting_.empty(); waiting_.pop()) {
      batch.push_back(waiting_.top().what);
    }
    std::sort(batch.begin(), batch.end());
    const std::size_t near = (batch.size() + kParts - 1) / kParts;
    std::vector<std::vector<BoundedPlan>> asked((batch.size() + near - 1) / near);
    parallel_for(asked.size(), threads_, [&](std::size_t part) {
      PlanSifter sifter(cost_);
      for (std::size_t i = part * near; i < std::min(batch.size(), (part + 1) * near); ++i) {
        const Siblings& siblings = all_[batch[i]];
        for (std::size_t k = 0; k < siblings.plans.size(); ++k) {
          Allowed* const plan = siblings.plans[k];
          weigh(cost_, options_, sifter, *plan);
          if (plan->room != Room::fits) continue;
          const Seconds bound = cost_.lower_bound(plan->plan).step;
          asked[part].push_back({bound, batch[i] * kMostSiblings + k, plan});
        }
      }
    });
    bool any = false;
    for (const auto& part : asked) {
      for (const BoundedPlan& plan : part) bounded_.push(plan);
      any |= !part.empty();
    }
    at_once_ = any ? kFewestAtOnce : std::min(2 * at_once_, kMostAtOnce);
  }

  static constexpr std::size_t kMostSiblings = 1 << 20;  // to number them
  static constexpr std::size_t kFewestAtOnce = 64, kMostAtOnce = 8192;

  const CostModel& cost_;
  const SearchOptions& options_;
  const std::vector<Siblings>& all_;
  int threads_;
  std::size_t at_once_ = kFewestAtOnce;
  Heap<std::size_t> waiting_;  // by the bound of their own work
  Heap<const Allowed*> bounded_;
};

// Simulates plans in the order of their bounds, a fixed batch at a time, until no bound is below
// the k-th best time. Returns the simulated ones.
std::vector<Candidate> simulate(const CostModel& cost, const SearchOptions& options,
                                const std::vector<Siblings>& siblings, BestTimes& best) {
  const int threads = thread_count(options.threads);
  ByBound queue(cost, options, siblings);
  constexpr std::size_t kBatch = 32;
  std::vector<Candidate> simulated;
  while (auto next = queue.first(best)) {
    const std::size_t done = simulated.size();
    for (; next && simulated.size() < done + kBatch; next = queue.first(best)) {
      simulated.push_back({next->what->plan, next->what->device_peak});
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
    if (options.progress) options.progress(0.5 + 0.5 * queue.progress());
  }
  return simulated;
}

// Whether moving layers between stages may make a plan one of the fastest so far. Where each
// chunk recomputes a number of its layers, other chunks recompute others, and no bound holds.
bool may_be_evened(const ParallelPlan& plan) {
  return plan.pp > 1 && plan.schedule != ScheduleKind::dualpipe && plan.recompute.layers == 0;
}
bool worth_evening(const CostModel& cost, const ParallelPlan& plan, const BestTimes& best,
                   bool prune) {
  constexpr double kWorthwhile = 1.01;  // less than that no prediction can tell
  const StepBound bound = cost.lower_bound(plan);
  return bound.imbalance >= kWorthwhile && !(prune && best.rules_out(bound.evened, kFewest));
}

// Plans that fit once more, with layers moved away from the busiest pipeline rank: the one with the
// head, where a large vocabulary weighs as much as several layers.
std::vector<Found> even_out(const CostModel& cost, const SearchSpace& space,
                            const SearchOptions& options, const std::vector<Siblings>& all,
                            const BestTimes& best) {
  if (!space.job.pipeline_layout.empty() || !cost.recipe().can.takes_layout) return {};
  const int threads = thread_count(options.threads);
  std::vector<const Siblings*> hopeful;
  for (const Siblings& siblings : all) {
    const bool hopeless = options.prune && best.rules_out(siblings.own_work.evened, kFewest);
    if (!hopeless && may_be_evened(siblings.plans.front()->plan)) hopeful.push_back(&siblings);
  }
  constexpr std::size_t kBatch = 16;  // neighbours share what a sifter remembers
  std::vector<Found> found((hopeful.size() + kBatch - 1) / kBatch);
  parallel_for(found.size(), threads, [&](std::size_t b) {
    PlanSifter sifter(cost);
    Sieve even(cost, space, options);
    for (std::size_t i = b * kBatch; i < std::min(hopeful.size(), (b + 1) * kBatch); ++i) {
      for (Allowed* const uneven : hopeful[i]->plans) {
        weigh(cost, options, sifter, *uneven);
        if (uneven->room != Room::fits) continue;
        if (!worth_evening(cost, uneven->plan, best, options.prune)) continue;
        ParallelPlan plan = uneven->plan;
        plan.pipeline_layout = balanced_layout(cost.model().num_layers, plan, cost.end_work(plan));
        if (plan.pipeline_layout.empty()) continue;
        if (plan.pipeline_layout == stage_layers(cost.model(), uneven->plan)) continue;
        even.judge(plan);
      }
    }
    found[b] = even.take();
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

// What was found, counted in `result`.
std::vector<Siblings> gather(std::vector<Found>& found, SearchResult& result) {
  std::vector<Siblings> all;
  for (Found& f : found) {
    for (const auto& [rule, count] : f.infeasible) result.infeasible[std::string(rule)] += count;
    result.considered += f.considered;
    std::move(f.siblings.begin(), f.siblings.end(), std::back_inserter(all));
  }
  return all;
}

// Counts what did not fit of the plans that were weighed, and keeps the smallest.
void count_misfits(std::vector<Found>& found, SearchResult& result) {
  for (Found& f : found) {
    for (const Allowed& allowed : f.allowed) {
      if (allowed.room == Room::too_small) f.misfit(allowed);
    }
    result.out_of_memory += f.out_of_memory;
    const auto& s = f.smallest;
    if (s && (!result.smallest || s->device_peak < result.smallest->device_peak)) {
      result.smallest = s;
    }
  }
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
  const std::vector<Siblings> siblings = gather(found, result);
  std::vector<Candidate> simulated = simulate(cost, options, siblings, best);
  std::vector<Found> found_even = even_out(cost, space, options, siblings, best);
  const std::vector<Siblings> even = gather(found_even, result);
  std::vector<Candidate> evened = simulate(cost, options, even, best);
  std::move(evened.begin(), evened.end(), std::back_inserter(simulated));
  count_misfits(found, result);
  count_misfits(found_even, result);
  std::int64_t refused = 0;
  for (const auto& [rule, count] : result.infeasible) refused += count;
  result.simulated = std::ssize(simulated);
  result.bounded_out = result.considered - refused - result.out_of_memory - result.simulated;
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

EnumSet<OverlapKind> overlap_at_zero(int zero, EnumSet<OverlapKind> overlap) {
  return zero == 0 ? overlap.remove(OverlapKind::param) : overlap;
}

ParallelPlan defaults_beside(const ParallelPlan& said, const ModelSpec& model,
                             const Recipe& recipe) {
  ParallelPlan plan =
      default_plan(model, recipe, said.world(), said.global_batch_size, said.seq_len);
  plan.grad_dtype = default_grad_dtype(recipe, said.precision);
  if (said.cp > 1) plan.cp_comm = default_cp_comm(model, said, recipe);
  plan.overlap = overlap_at_zero(said.zero, plan.overlap);
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
