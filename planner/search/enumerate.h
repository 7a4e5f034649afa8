#pragma once
// The plans of a search space, one by one, in a fixed order. Only distinct plans: a word that
// cannot matter (a context-parallel algorithm on one rank) keeps its default.

#include <functional>
#include <vector>

#include "planner/search/search.h"

namespace qplan {

// The degrees that decide a plan's skeleton; the unit of parallel work.
struct Skeleton {
  int tp = 1, cp = 1, pp = 1, dp = 1;
};
std::vector<Skeleton> skeletons(const ModelSpec& model, const Recipe& recipe,
                                const HardwareProfile& hardware, const SearchSpace& space);

// Calls visit(plan) for every plan of a skeleton.
void each_plan(const ModelSpec& model, const Recipe& recipe, const HardwareProfile& hardware,
               const SearchSpace& space, const Skeleton& skeleton,
               const std::function<void(const ParallelPlan&)>& visit);

// Divisors of n, ascending.
std::vector<int> divisors(std::int64_t n);

}  // namespace qplan
