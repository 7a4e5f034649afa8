#include "planner/search/refusals.h"

#include <memory>
#include <utility>

#include "costmodel/least_memory.h"

namespace qplan {

RefusesPlan refuses_states_that_do_not_fit(const CostModel& cost) {
  return [least = std::make_shared<LeastMemory>(cost)](const ParallelPlan& plan) {
    return least->cannot_fit(plan) ? kStatesFit : std::string_view();
  };
}

RefusesPlan either(RefusesPlan first, RefusesPlan second) {
  if (!first) return second;
  if (!second) return first;
  return [first = std::move(first), second = std::move(second)](const ParallelPlan& plan) {
    const std::string_view refused = first(plan);
    return refused.empty() ? second(plan) : refused;
  };
}

}  // namespace qplan
