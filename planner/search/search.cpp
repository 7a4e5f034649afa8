#include "planner/search/search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <limits>
#include <utility>

#include "models/program/step_program.h"
#include "planner/rules/feasible.h"
#include "planner/search/layout.h"
#include "planner/search/parallel_for.h"
#include "planner/search/refine.h"
#include "planner/search/search_less.h"
#include "planner/search/sieve.h"

namespace qplan {
namespace {

bool better(const Candidate& a, const Candidate& b) {
  return a.step_time < b.step_time;
}

void append(std::vector<Candidate> more, std::vector<Candidate>& to) {
  std::move(more.begin(), more.end(), std::back_inserter(to));
}

// Finds the step times of some plans, but of those that are not among the best whatever comes of
// them, and adds them to the best. Returns the simulated ones.
std::vector<Candidate> price(const CostModel& cost, const SearchOptions& options,
                             std::vector<Candidate> plans, BestTimes& best) {
  const Seconds limit = options.prune ? best.limit() : kNever;
  parallel_for(plans.size(), thread_count(options.threads), [&](std::size_t i) {
    plans[i].step_time = cost.step_time_within(plans[i].plan, limit).value_or(kNever);
  });
  std::erase_if(plans, [](const Candidate& c) { return c.step_time == kNever; });
  for (Candidate& c : plans) {
    c.refused = options.accepts && !best.rules_out(c.step_time) && !options.accepts(c.plan);
    if (!c.refused) best.add(c.step_time);
  }
  return plans;
}

// Simulates plans in the order of their bounds, a fixed batch at a time, until no bound is below
// the k-th best time. Returns the simulated ones.
std::vector<Candidate> simulate(const CostModel& cost, const SearchOptions& options, ByBound& queue,
                                BestTimes& best) {
  constexpr std::size_t kBatch = 32;
  std::vector<Candidate> simulated;
  while (auto next = queue.first(best)) {
    std::vector<Candidate> batch;
    for (; next && batch.size() < kBatch; next = queue.first(best)) {
      batch.push_back({next->what->plan, next->what->device_peak});
      queue.pop();
    }
    append(price(cost, options, std::move(batch), best), simulated);
    if (options.progress) options.progress(0.5 + 0.5 * queue.progress());
  }
  return simulated;
}

constexpr double kTellable = 1.01;  // less than that no prediction can tell

bool worth_evening(const CostModel& cost, const ParallelPlan& plan, const BestTimes& best,
                   bool prune) {
  const StepBound bound = cost.lower_bound(plan);
  return bound.imbalance >= kTellable && !(prune && best.rules_out(bound.evened, kFewest));
}

void add(std::string_view rule, const Refused& refused, SearchResult& to) {
  to.infeasible.try_emplace(std::string(rule), Refused{0, refused.example}).first->second.plans +=
      refused.plans;
}

void count(const Ruled& ruled, SearchResult& result) {
  for (const auto& [rule, refused] : ruled.infeasible) add(rule, refused, result);
  result.considered += ruled.considered;
}

// Plans once more, with layers moved away from the busiest pipeline rank: the one with the head,
// where a large vocabulary weighs as much as several layers. Also those that nearly fit. Counted in
// `result`.
std::deque<Sifted> even_out(const CostModel& cost, const SearchSpace& space,
                            const SearchOptions& options, HeldStates& states,
                            const std::vector<const Siblings*>& hopeful, const BestTimes& best,
                            SearchResult& result) {
  const int threads = thread_count(options.threads);
  const Rules rules(cost, space, options);
  constexpr std::size_t kBatch = 16;  // neighbours share what a sifter remembers
  std::deque<Sifted> found((hopeful.size() + kBatch - 1) / kBatch);
  std::vector<Ruled> ruled(found.size());
  parallel_for(found.size(), threads, [&](std::size_t b) {
    PlanSifter sifter(cost);
    Sieve even(cost, options, states);
    for (std::size_t i = b * kBatch; i < std::min(hopeful.size(), (b + 1) * kBatch); ++i) {
      PlanNumber number = hopeful[i]->number;
      for (Allowed* const uneven : hopeful[i]->plans) {
        ++number;
        if (!worth_evening(cost, uneven->plan, best, options.prune)) continue;
        weigh(cost, options, sifter, *uneven);
        if (uneven->room != Room::fits &&
            !may_fit_evened(cost, options, uneven->plan, uneven->device_peak)) {
          continue;
        }
        const auto plan = evened(cost, uneven->plan);
        if (plan && ruled[b].allows(rules, *plan)) even.judge(*plan, number);
      }
    }
    found[b] = even.take();
  });
  for (const Ruled& of_batch : ruled) count(of_batch, result);
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

// Counts what did not fit of the plans that were weighed, and keeps the smallest.
void count_misfits(const std::deque<Sifted>& found, SearchResult& result) {
  Sifted all;
  for (const Sifted& f : found) {
    result.out_of_memory += f.out_of_memory;
    if (f.smallest) all.misfit({f.smallest->plan, f.smallest->device_peak});
    for (const Allowed& allowed : f.allowed) {
      if (allowed.room != Room::too_small) continue;
      ++result.out_of_memory;
      all.misfit(allowed);
    }
  }
  const auto& s = all.smallest;
  if (s && (!result.smallest || s->device_peak < result.smallest->device_peak)) result.smallest = s;
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

// Simulates plans with their layers moved, a round at a time: what one finds rules out others.
std::vector<Candidate> simulate_evened(const CostModel& cost, const SearchSpace& space,
                                       const SearchOptions& options, HeldStates& states,
                                       ByBound& queue, BestTimes& best, SearchResult& result) {
  std::vector<Candidate> simulated;
  if (!places_layers(cost, space)) return simulated;
  for (auto hopeful = queue.next_to_even(best); !hopeful.empty();
       hopeful = queue.next_to_even(best)) {
    ByBound even(cost, options, states, {},
                 even_out(cost, space, options, states, hopeful, best, result));
    append(simulate(cost, options, even, best), simulated);
    count_misfits(even.found(), result);
  }
  return simulated;
}

// Adds steps aside from the best plans, as long as one of them is among the best, a few times at
// most.
void add_neighbours(const CostModel& cost, const SearchSpace& space, const SearchOptions& options,
                    BestTimes& best, std::vector<Candidate>& simulated) {
  constexpr int kSteps = 4;
  std::vector<Candidate> known = simulated;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Candidate> found = neighbours_of_best(cost, space, options, known);
    if (found.empty()) return;
    append(found, known);  // each is tried once
    const Seconds limit = best.limit(kFewest);
    std::vector<Candidate> priced = price(cost, options, std::move(found), best);
    std::erase_if(priced, [](const Candidate& c) { return c.refused; });
    append(priced, known);
    append(std::move(priced), simulated);
    if (!(best.limit(kFewest) < limit)) return;
  }
}

// Looks for a plan that fits, of all that search_world() looks at, until there is one.
class AnyThatFits {
 public:
  AnyThatFits(const CostModel& cost, const SearchSpace& space, const SearchOptions& options)
      : cost_(cost),
        space_(space),
        options_(options),
        rules_(cost, space, options),
        states_(cost, options) {}

  SearchResult look() {
    const std::vector<Skeleton> work =
        skeletons(cost_.model(), cost_.recipe(), cost_.hardware(), space_);
    std::vector<Part> parts(work.size());
    parallel_for(work.size(), thread_count(options_.threads),
                 [&](std::size_t i) { look_at(work[i], parts[i]); });
    SearchResult result = sum_of(parts);
    if (!result.plans.empty() || !places_layers(cost_, space_)) return result;
    parallel_for(parts.size(), thread_count(options_.threads),
                 [&](std::size_t i) { even_out(parts[i]); });
    return sum_of(parts);
  }

 private:
  struct Part {
    Ruled ruled;
    std::vector<ParallelPlan> nearly;  // do not fit, and may with their layers moved
    std::optional<RankedPlan> fits;
  };

  // Nothing, where it fits; else what it needs.
  std::optional<Bytes> too_large(PlanSifter& sifter, const ParallelPlan& plan, Part& part) {
    Allowed allowed{plan};
    weigh(cost_, options_, sifter, allowed);
    if (allowed.room != Room::fits) return allowed.device_peak;
    part.fits = RankedPlan{plan, Seconds(0), allowed.device_peak};
    found_ = true;
    return std::nullopt;
  }

  void look_at(const Skeleton& skeleton, Part& part) {
    PlanSifter sifter(cost_);
    each_plan(cost_.model(), cost_.recipe(), cost_.hardware(), space_, skeleton,
              [&](const ParallelPlan& plan) {
                if (found_ || !part.ruled.allows(rules_, plan) || states_.rule_out(plan)) return;
                const std::optional<Bytes> needs = too_large(sifter, plan, part);
                if (needs && may_fit_evened(cost_, options_, plan, *needs)) {
                  part.nearly.push_back(plan);
                }
              });
  }

  void even_out(Part& part) {
    PlanSifter sifter(cost_);
    for (const ParallelPlan& plan : part.nearly) {
      if (found_) return;
      if (cost_.lower_bound(plan).imbalance < kTellable) continue;
      const auto even = evened(cost_, plan);
      if (even && part.ruled.allows(rules_, *even)) too_large(sifter, *even, part);
    }
  }

  static SearchResult sum_of(const std::vector<Part>& parts) {
    SearchResult result;
    for (const Part& part : parts) {
      count(part.ruled, result);
      if (part.fits && result.plans.empty()) result.plans.push_back(*part.fits);
    }
    return result;
  }

  const CostModel& cost_;
  const SearchSpace& space_;
  const SearchOptions& options_;
  const Rules rules_;
  HeldStates states_;
  std::atomic<bool> found_ = false;
};

SearchResult search_world(const CostModel& cost, const SearchSpace& space,
                          const SearchOptions& options, const AsksSmallest& asks_smallest) {
  const std::vector<Skeleton> work = skeletons(cost.model(), cost.recipe(), cost.hardware(), space);
  std::vector<Ruled> ruled(work.size());
  HeldStates states(cost, options);
  parallel_for(work.size(), thread_count(options.threads),
               [&](std::size_t i) { ruled[i] = ask_rules(cost, space, options, work[i], states); });
  if (options.progress) options.progress(0.5);

  SearchResult result;
  std::vector<BoundedFamily> families;
  Hopeless hopeless;
  for (Ruled& of_skeleton : ruled) {
    count(of_skeleton, result);
    hopeless.append(std::move(of_skeleton.hopeless));
    std::move(of_skeleton.families.begin(), of_skeleton.families.end(),
              std::back_inserter(families));
  }
  BestTimes best(std::max(options.top, static_cast<int>(kFewest)));
  ByBound queue(cost, options, states, std::move(families), {});
  std::vector<Candidate> simulated = simulate(cost, options, queue, best);
  append(simulate_evened(cost, space, options, states, queue, best, result), simulated);
  count_misfits(queue.found(), result);
  result.out_of_memory += hopeless.count();
  const bool any = std::any_of(simulated.begin(), simulated.end(),
                               [](const Candidate& c) { return !c.refused; });
  if (!any && (!asks_smallest || asks_smallest(result))) {
    if (auto smallest = hopeless.smallest(cost, result.smallest)) result.smallest = smallest;
  }
  std::int64_t refused = 0;
  for (const auto& [rule, of_rule] : result.infeasible) refused += of_rule.plans;
  result.simulated = std::ssize(simulated);
  result.bounded_out = result.considered - refused - result.out_of_memory - result.simulated;
  leave_out_refused(simulated, result);
  add_neighbours(cost, space, options, best, simulated);
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
  for (const auto& [rule, refused] : from.infeasible) add(rule, refused, to);
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

AdapterFormat default_lora_dtype(const ParallelPlan& said, RecipeKind recipe) {
  const bool chooses = recipe == RecipeKind::ddp || recipe == RecipeKind::fsdp1;
  const bool whole = said.frozen_weights == FrozenFormat::computed;
  return chooses && whole && said.lora_rank > 0 ? AdapterFormat::fp32 : AdapterFormat::computed;
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
  plan.lora_dtype = default_lora_dtype(said, recipe.kind);
  return plan;
}

SearchResult search(const CostModel& cost, const SearchSpace& space, const SearchOptions& options) {
  return search(cost, space, options, {});
}

SearchResult search_any(const CostModel& cost, const SearchSpace& space,
                        const SearchOptions& options) {
  // What a job has room for besides is asked of the fastest plans.
  const bool plans_alone = options.objective == Objective::tokens && !options.accepts;
  return plans_alone ? AnyThatFits(cost, space, options).look() : search(cost, space, options);
}

SearchResult search(const CostModel& cost, const SearchSpace& space, const SearchOptions& options,
                    const AsksSmallest& asks_smallest) {
  if (options.objective == Objective::tokens) {
    return search_world(cost, space, options, asks_smallest);
  }
  // Fewer GPUs may be cheaper a token, or simply enough: every world that divides the one asked
  // for.
  SearchResult result;
  double best = std::numeric_limits<double>::infinity();
  for (const int gpus : divisors(space.gpus)) {
    SearchSpace smaller = space;
    smaller.gpus = gpus;
    SearchResult here = search_world(cost, smaller, options, asks_smallest);
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
