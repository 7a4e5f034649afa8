#include "planner/search/sieve.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "models/program/step_program.h"
#include "planner/search/parallel_for.h"

namespace qplan {

Rules::Rules(const CostModel& cost, const SearchSpace& space, const SearchOptions& options)
    : cost_(cost),
      options_(options),
      limits_(limits_of(cost.hardware(), space.gpus, cost.kinds())) {}

std::string_view Rules::broken(const ParallelPlan& plan) const {
  const std::string_view rule = broken_rule(cost_.model(), plan, cost_.recipe(), limits_);
  return rule.empty() && options_.refuses ? options_.refuses(plan) : rule;
}

bool Ruled::allows(const Rules& rules, const ParallelPlan& plan) {
  ++considered;
  const std::string_view rule = rules.broken(plan);
  if (rule.empty()) return true;
  const auto [refused, first] = infeasible.try_emplace(rule);
  if (first) refused->second.example = plan;
  ++refused->second.plans;
  return false;
}

namespace {

// What a step takes at least if all pipeline ranks work alike, of families that differ in their
// schedule and chunks alone; they follow each other in the same order under each. A backward in two
// parts is other work than a whole one, and beside a forward communication counts for nothing.
class EvenWork {
 public:
  // Of the family that a skeleton's schedule has at this place.
  std::optional<Seconds>& of(const ScheduleShape& schedule, std::size_t place) {
    auto& known = known_[{backward_form(schedule.kind), schedule.pairs}];
    if (known.size() <= place) known.resize(place + 1);
    return known[place];
  }

 private:
  std::map<std::pair<BackwardForm, bool>, std::vector<std::optional<Seconds>>> known_;
};

constexpr double kRounding = 1e-9;  // sums of the same blocks in another order

}  // namespace

Ruled ask_rules(const CostModel& cost, const SearchSpace& space, const SearchOptions& options,
                const Skeleton& skeleton, HeldStates& states) {
  const Rules rules(cost, space, options);
  PlanSifter sifter(cost);
  EvenWork even_work;
  Ruled ruled;
  // Communication may vanish beside compute, if a plan runs it so.
  const auto hides_more = [&](const ParallelPlan& a, const ParallelPlan& b) {
    return a.overlap != b.overlap && schedule_shape(a, cost.recipe()).pairs &&
           !schedule_shape(b, cost.recipe()).pairs;
  };
  const auto of_family = [&](const Family& family) {
    std::vector<bool> allowed;
    std::optional<ParallelPlan> least;
    std::vector<Hopeless::OfFamily> hopeless;
    bool hope = false;
    each_plan(family, [&](const ParallelPlan& plan) {
      const auto place = static_cast<std::uint32_t>(allowed.size());
      allowed.push_back(ruled.allows(rules, plan));
      if (!allowed.back()) return;
      if (!least || hides_more(plan, *least)) least = plan;
      if (hope) return;  // of others it is asked where that spares more
      const std::optional<Bytes> needs = states.rule_out(plan);
      hope = !needs;
      if (needs) hopeless.push_back({*needs, place});
    });
    if (!least) return;
    if (!hope) return ruled.hopeless.add(family, hopeless);
    least->recompute = family.least.recompute;
    BoundedFamily bounded{{std::move(*least), family.words}, std::move(allowed), {}, false};
    std::optional<Seconds>& even =
        even_work.of(schedule_shape(bounded.family.least, cost.recipe()), family.place);
    if (even) {
      bounded.bound = {*even, *even, 1};
    } else {
      bounded.bound = sifter.own_work_bound(bounded.family.least);
      bounded.of_schedule = true;
      even = bounded.bound.evened * (1 - kRounding);
    }
    ruled.families.push_back(std::move(bounded));
  };
  each_family(cost.model(), cost.recipe(), cost.hardware(), space, skeleton, of_family);
  return ruled;
}

void Sifted::misfit(const Allowed& plan) {
  ++out_of_memory;
  if (smallest && smallest->device_peak <= plan.device_peak) return;
  smallest = RankedPlan{plan.plan, Seconds(0), plan.device_peak};
}

void weigh(const CostModel& cost, const SearchOptions& options, PlanSifter& sifter,
           Allowed& allowed) {
  if (allowed.room != Room::unknown) return;
  const PlanSifter::Check check = sifter.check(allowed.plan);
  const bool fits = check.fits && check.device_peak + options.beside <= cost.capacity();
  allowed.device_peak = check.device_peak;
  allowed.room = fits ? Room::fits : Room::too_small;
}

void Sieve::judge(const BoundedFamily& family, PlanNumber number) {
  std::size_t place = 0;
  each_plan(family.family, [&](const ParallelPlan& plan) {
    if (family.allowed[place]) judge(plan, number + place);
    ++place;
  });
}

void Sieve::judge(const ParallelPlan& plan, PlanNumber number) {
  if (weighs_ && found_.smallest) {
    const std::optional<Bytes> needs = states_.rule_out(plan);
    if (needs && *needs >= found_.smallest->device_peak) {
      ++found_.out_of_memory;
      return;
    }
  }
  if (sifter_.look_at(plan)) begin();
  Allowed allowed{plan};
  if (weighs_) weigh(cost_, options_, sifter_, allowed);
  if (allowed.room == Room::too_small &&
      !may_fit_evened(cost_, options_, plan, allowed.device_peak)) {
    return found_.misfit(allowed);
  }
  if (!kept_) found_.siblings.push_back({{}, sifter_.own_work_bound(plan), number});
  kept_ = true;
  fits_ |= allowed.room != Room::too_small;
  found_.siblings.back().plans.push_back(&found_.allowed.emplace_back(std::move(allowed)));
}

// The siblings before are all there.
void Sieve::begin() {
  constexpr int kNowAndThen = 16;
  if (weighs_) unweighed_ = fits_ ? 0 : kNowAndThen;
  weighs_ = ++unweighed_ > kNowAndThen;
  fits_ = kept_ = false;
}

BestTimes::BestTimes(int wanted) : wanted_(static_cast<std::size_t>(std::max(wanted, 1))) {}

void BestTimes::add(Seconds time) {
  times_.insert(std::upper_bound(times_.begin(), times_.end(), time), time);
  if (times_.size() > wanted_) times_.pop_back();
}

Seconds BestTimes::limit(std::size_t few) const {
  return times_.size() < few ? Seconds(std::numeric_limits<double>::infinity()) : times_[few - 1];
}

ByBound::ByBound(const CostModel& cost, const SearchOptions& options, HeldStates& states,
                 std::vector<BoundedFamily> families, std::deque<Sifted> found)
    : cost_(cost),
      options_(options),
      states_(states),
      families_(std::move(families)),
      threads_(thread_count(options.threads)),
      looked_at_(families_.size(), false),
      found_(std::move(found)) {
  std::vector<Bounded<std::size_t>> unseen;
  unseen.reserve(families_.size());
  for (std::size_t i = 0; i < families_.size(); ++i) {
    unseen.push_back({families_[i].bound.step, i, i});
  }
  unseen_ = Heap<std::size_t>({}, std::move(unseen));
  for (const Sifted& there : found_) wait_for(there);
}

void ByBound::wait_for(const Sifted& found) {
  for (const Siblings& siblings : found.siblings) {
    waiting_.push({siblings.own_work.step, siblings.number, &siblings});
  }
  if (evening_) wait_for_evening(found);
}

std::optional<ByBound::BoundedPlan> ByBound::first(const BestTimes& best) {
  const auto comes_first = [&](const auto& heap, const auto&... others) {
    return !heap.empty() && !hopeless(heap.top().bound, best) &&
           ((others.empty() || heap.top().bound <= others.top().bound) && ...);
  };
  for (;;) {
    if (comes_first(unseen_, waiting_, bounded_)) {
      look_at_next();
    } else if (comes_first(waiting_, bounded_)) {
      ask_next();
    } else if (comes_first(bounded_)) {
      return bounded_.top();
    } else {
      return std::nullopt;
    }
  }
}

namespace {

// Several pieces of work as few parts, of which each takes neighbours: those that were enumerated
// near each other share what a sifter remembers. Calls run(part, first, end).
template <class Run>
std::size_t in_parts(std::size_t count, int threads, Run run) {
  constexpr std::size_t kParts = 8;
  const std::size_t near = (count + kParts - 1) / kParts;
  const std::size_t parts = near == 0 ? 0 : (count + near - 1) / near;
  parallel_for(parts, threads, [&](std::size_t part) {
    run(part, part * near, std::min(count, (part + 1) * near));
  });
  return parts;
}

// How many to take next: of more at once the less comes of them.
std::size_t next_count(std::size_t now, bool came_to_something) {
  constexpr std::size_t kMost = 8192;
  return came_to_something ? kFewestAtOnce : std::min(2 * now, kMost);
}

template <class What>
std::vector<What> take(std::priority_queue<ByBound::Bounded<What>>& heap, std::size_t count) {
  std::vector<ByBound::Bounded<What>> batch;
  for (; batch.size() < count && !heap.empty(); heap.pop()) batch.push_back(heap.top());
  std::sort(batch.begin(), batch.end(),
            [](const auto& a, const auto& b) { return a.number < b.number; });
  std::vector<What> taken;
  for (const auto& of : batch) taken.push_back(of.what);
  return taken;
}

}  // namespace

void ByBound::look_at(const std::vector<std::size_t>& families) {
  if (families.empty()) return;
  std::vector<Sifted> found(families.size());
  found.resize(in_parts(families.size(), threads_,
                        [&](std::size_t part, std::size_t first, std::size_t end) {
                          Sieve sieve(cost_, options_, states_);
                          for (std::size_t i = first; i < end; ++i) {
                            sieve.judge(families_[families[i]], families[i] * kMostOfFamily);
                          }
                          found[part] = sieve.take();
                        }));
  for (const std::size_t family : families) looked_at_[family] = true;
  bool any = false;
  for (Sifted& of_part : found) {
    any |= !of_part.siblings.empty();
    wait_for(found_.emplace_back(std::move(of_part)));
  }
  families_at_once_ = next_count(families_at_once_, any);
}

void ByBound::bound(const std::vector<std::size_t>& families) {
  in_parts(families.size(), threads_, [&](std::size_t, std::size_t first, std::size_t end) {
    PlanSifter sifter(cost_);
    for (std::size_t i = first; i < end; ++i) {
      BoundedFamily& family = families_[families[i]];
      family.bound = sifter.own_work_bound(family.family.least);
      family.of_schedule = true;
    }
  });
  for (const std::size_t i : families) unseen_.push({families_[i].bound.step, i, i});
}

void ByBound::look_at_next() {
  std::vector<std::size_t> next = take(unseen_, families_at_once_);
  std::erase_if(next, [&](std::size_t family) { return looked_at_[family]; });
  const auto bounded = std::stable_partition(
      next.begin(), next.end(), [&](std::size_t family) { return !families_[family].of_schedule; });
  bound({next.begin(), bounded});
  look_at({bounded, next.end()});
}

void ByBound::ask_next() {
  const std::vector<const Siblings*> batch = take(waiting_, at_once_);
  std::vector<std::vector<BoundedPlan>> asked(batch.size());
  in_parts(batch.size(), threads_, [&](std::size_t part, std::size_t first, std::size_t end) {
    PlanSifter sifter(cost_);
    for (std::size_t i = first; i < end; ++i) {
      for (std::size_t k = 0; k < batch[i]->plans.size(); ++k) {
        Allowed* const plan = batch[i]->plans[k];
        weigh(cost_, options_, sifter, *plan);
        if (plan->room != Room::fits) continue;
        asked[part].push_back({cost_.lower_bound(plan->plan).step, batch[i]->number + k, plan});
      }
    }
  });
  bool any = false;
  for (const auto& part : asked) {
    for (const BoundedPlan& plan : part) bounded_.push(plan);
    any |= !part.empty();
  }
  at_once_ = next_count(at_once_, any);
}

void ByBound::begin_evening() {
  evening_ = true;
  for (std::size_t i = 0; i < families_.size(); ++i) {
    if (looked_at_[i] || !may_be_evened(families_[i].family.least)) continue;
    uneven_families_.push({families_[i].bound.evened, i, i});
  }
  for (const Sifted& found : found_) wait_for_evening(found);
}

void ByBound::wait_for_evening(const Sifted& found) {
  for (const Siblings& siblings : found.siblings) {
    if (!may_be_evened(siblings.plans.front()->plan)) continue;
    uneven_.push({siblings.own_work.evened, siblings.number, &siblings});
  }
}

std::vector<const Siblings*> ByBound::next_to_even(const BestTimes& best) {
  if (!evening_) begin_evening();
  const auto hopeful = [&](const auto& heap) {
    return !heap.empty() && !(options_.prune && best.rules_out(heap.top().bound, kFewest));
  };
  while (hopeful(uneven_families_) &&
         (uneven_.empty() || uneven_families_.top().bound <= uneven_.top().bound)) {
    look_at(take(uneven_families_, even_at_once_));
  }
  std::vector<const Siblings*> round;
  for (; round.size() < even_at_once_ && hopeful(uneven_); uneven_.pop()) {
    round.push_back(uneven_.top().what);
  }
  even_at_once_ *= 2;
  std::sort(round.begin(), round.end(),
            [](const Siblings* a, const Siblings* b) { return a->number < b->number; });
  return round;
}

double ByBound::progress() const {
  if (families_.empty()) return 1;
  return 1 - static_cast<double>(unseen_.size()) / static_cast<double>(families_.size());
}

}  // namespace qplan
