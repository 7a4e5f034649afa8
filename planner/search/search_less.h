#pragma once
// Searches that are asked for less than search() answers, and so are over sooner.

#include <functional>

#include "planner/search/search.h"

namespace qplan {

// Whether any plan fits: one of those that search() looks at that does, whichever, without its
// step time; and what was refused where there is none.
SearchResult search_any(const CostModel& cost, const SearchSpace& space,
                        const SearchOptions& options);

// Of a search that found none: whether anybody asks for the plan that needs least, which can take
// longer than all the rest. Empty: yes.
using AsksSmallest = std::function<bool(const SearchResult& none)>;

SearchResult search(const CostModel& cost, const SearchSpace& space, const SearchOptions& options,
                    const AsksSmallest& asks_smallest);

}  // namespace qplan
