#include "planner/search/untried.h"

#include <algorithm>
#include <type_traits>

#include "planner/search/sieve.h"

namespace qplan {
namespace {

constexpr double kWorthwhile = 0.01;  // of a step: less is not worth anybody's trial

// The plan with other values of a setting.
template <class T>
std::vector<ParallelPlan> others_than(const ParallelPlan& best, const PlanWord<T>& word) {
  std::vector<ParallelPlan> plans;
  const T now = best.*word.member;
  const auto add = [&](const T& value) { (plans.emplace_back(best)).*word.member = value; };
  if constexpr (std::is_same_v<T, bool>) {
    add(!now);
  } else if constexpr (std::is_enum_v<T>) {
    for (const auto& [value, text] : Words<T>::table) {
      if (value != now && (word.takes.empty() || word.takes.has(value))) add(value);
    }
  } else if constexpr (std::is_same_v<T, EnumSet<OverlapKind>>) {
    for (const auto& [kind, text] : Words<OverlapKind>::table) {
      if (now.has(kind)) continue;
      T more = now;
      add(more.add(kind));
    }
  } else if constexpr (std::is_same_v<T, Offload>) {
    Offload more = now;
    more.activation_layers = -1;
    if (now.activation_layers == 0) add(more);
  }
  return plans;
}

class Trials {
 public:
  Trials(const CostModel& cost, const SearchSpace& space, const ParallelPlan& best)
      : cost_(cost), space_(space), best_(best), rules_(cost, space, options_), sifter_(cost) {
    before_ = cost.evaluate(best).step_time;
  }

  template <class T>
  void of(const PlanWord<T>& word) {
    // Of a word that every plan of a search has alike, what is not the default was asked for.
    const bool asked = word.given == Given::once
                           ? !(space_.job.*word.member == ParallelPlan{}.*word.member)
                           : !space_[word.member].empty();
    if (!word.setting || asked) return;
    if (is_member(word.member, &ParallelPlan::overlap) && overlaps_nothing()) return;
    for (ParallelPlan plan : others_than(best_, word)) {
      if (is_member(word.member, &ParallelPlan::cuda_graph_scope)) plan.cuda_graph = true;
      try_plan(plan);
      // What goes to the host need not be computed again.
      if (!is_member(word.member, &ParallelPlan::offload)) continue;
      if (!space_[&ParallelPlan::recompute].empty()) continue;
      plan.recompute = {};
      try_plan(plan);
    }
  }

  std::vector<RankedPlan> take() {
    std::stable_sort(found_.begin(), found_.end(), [](const RankedPlan& a, const RankedPlan& b) {
      return a.step_time < b.step_time;
    });
    return std::move(found_);
  }

 private:
  // DeepSpeed turns overlap_comm off where there are stages, with a warning (0.18.2,
  // deepspeed/runtime/engine.py:1769).
  [[nodiscard]] bool overlaps_nothing() const {
    const RecipeKind kind = cost_.recipe().kind;
    return best_.pp > 1 &&
           (kind == RecipeKind::megatron_deepspeed || kind == RecipeKind::deepspeed);
  }

  void try_plan(const ParallelPlan& plan) {
    const auto same = [&](const RankedPlan& known) { return known.plan == plan; };
    if (plan == best_ || std::any_of(found_.begin(), found_.end(), same)) return;
    if (!rules_.broken(plan).empty()) return;
    Allowed tried{plan};
    weigh(cost_, options_, sifter_, tried);
    if (tried.room != Room::fits) return;
    const Seconds step = cost_.evaluate(plan).step_time;
    if (step > before_ * (1 - kWorthwhile)) return;
    found_.push_back({plan, step, tried.device_peak});
  }

  const CostModel& cost_;
  const SearchSpace& space_;
  const ParallelPlan& best_;
  SearchOptions options_;
  Rules rules_;
  PlanSifter sifter_;
  Seconds before_;
  std::vector<RankedPlan> found_;
};

}  // namespace

std::vector<RankedPlan> untried_settings(const CostModel& cost, const SearchSpace& space,
                                         const ParallelPlan& best) {
  Trials trials(cost, space, best);
  for_each_word([&](const auto& word) { trials.of(word); });
  return trials.take();
}

}  // namespace qplan
