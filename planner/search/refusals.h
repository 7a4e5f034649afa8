#pragma once
// What a search may be told to refuse besides what the rules forbid (SearchOptions::refuses).

#include <functional>
#include <string_view>

#include "costmodel/evaluate.h"

namespace qplan {

using RefusesPlan = std::function<std::string_view(const ParallelPlan&)>;

// Plans whose states alone are more than their GPUs hold. For who asks for the best plans alone:
// these count as refused and not as out of memory, and none of them is the smallest. Where few
// plans fit the answer comes several times as fast. `cost` must outlive it.
inline constexpr std::string_view kStatesFit = "states_fit";
RefusesPlan refuses_states_that_do_not_fit(const CostModel& cost);

// Of two, each of which may be empty, the first that refuses.
RefusesPlan either(RefusesPlan first, RefusesPlan second);

}  // namespace qplan
