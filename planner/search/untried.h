#pragma once
// Settings that a search leaves as its recipe has them: other kernels, launches and copies of the
// same step (PlanWord::setting). Each is tried on the plan that was found.

#include <vector>

#include "planner/search/search.h"

namespace qplan {

// Of plans that the rules allow and that fit, those that are faster than `best` by 1% or more, the
// fastest first; a word that the space gives stays.
std::vector<RankedPlan> untried_settings(const CostModel& cost, const SearchSpace& space,
                                         const ParallelPlan& best);

}  // namespace qplan
