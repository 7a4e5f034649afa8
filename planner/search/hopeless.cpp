#include "planner/search/hopeless.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace qplan {

bool may_be_evened(const ParallelPlan& plan) {
  return plan.pp > 1 && plan.schedule != ScheduleKind::dualpipe && plan.recompute.layers == 0;
}

bool may_fit_evened(const CostModel& cost, const SearchOptions& options, const ParallelPlan& plan,
                    Bytes device_peak) {
  if (!cost.recipe().can.takes_layout || !may_be_evened(plan)) return false;
  const double layers = as_double(cost.model().num_layers) / plan.pp;
  return device_peak + options.beside <= cost.capacity() * (1 + 2 / layers);
}

std::optional<Bytes> HeldStates::rule_out(const ParallelPlan& plan) {
  const LeastMemory::Needs least = least_.needs(plan);
  const Bytes device = least.device * (1 / LeastMemory::kRounding);
  const bool fits = !least.more_than_host && device + options_.beside <= cost_.capacity();
  if (fits || may_fit_evened(cost_, options_, plan, device)) return std::nullopt;
  return device;
}

void Hopeless::add(const Family& family, const std::vector<OfFamily>& plans) {
  const auto number = static_cast<std::uint32_t>(families_.size());
  families_.push_back(family);
  for (const OfFamily& plan : plans) plans_.push_back({plan.least, number, plan.place});
}

void Hopeless::append(Hopeless others) {
  const auto before = static_cast<std::uint32_t>(families_.size());
  std::move(others.families_.begin(), others.families_.end(), std::back_inserter(families_));
  for (const Plan& plan : others.plans_) {
    plans_.push_back({plan.least, before + plan.family, plan.place});
  }
}

std::optional<RankedPlan> Hopeless::smallest(const CostModel& cost,
                                             const std::optional<RankedPlan>& known) const {
  std::vector<Plan> by_least = plans_;
  std::stable_sort(by_least.begin(), by_least.end(),
                   [](const Plan& a, const Plan& b) { return a.least < b.least; });
  PlanSifter sifter(cost);
  std::optional<RankedPlan> best = known;
  std::pair<std::uint32_t, std::uint32_t> number;  // of the best, where it is one of these
  bool own = false;
  for (const Plan& candidate : by_least) {
    if (best && candidate.least > best->device_peak) break;
    std::uint32_t place = 0;
    each_plan(families_[candidate.family], [&](const ParallelPlan& plan) {
      if (place++ != candidate.place) return;
      const Bytes peak = sifter.check(plan).device_peak;
      const std::pair own_number(candidate.family, candidate.place);
      const bool first = best && peak == best->device_peak && own && own_number < number;
      if (best && !first && peak >= best->device_peak) return;
      best = RankedPlan{plan, Seconds(0), peak};
      number = own_number;
      own = true;
    });
  }
  return own ? best : std::nullopt;
}

}  // namespace qplan
