#pragma once
// A search among the plans that a framework's files can say.

#include "planner/frameworks/emit.h"
#include "planner/rl/rl_search.h"
#include "planner/search/search.h"
#include "planner/search/search_less.h"

namespace qplan {

// Plans that break a limit of the framework's files count as refused, under the limit's name. Where
// the files of a plan alone are of a step that makes its answers, that step must fit as check()
// reads it: beside the engine that sleeps, on engines that hold the weights. No framework: a search
// like any other.
SearchResult search_written(const CostModel& cost, const SearchSpace& space, SearchOptions options,
                            std::optional<Framework> framework, const Json& config);

// The same; where the files cannot name the model, or no such plan fits, what fits all the same,
// which emit() then refuses.
SearchResult search_offered(const CostModel& cost, const SearchSpace& space,
                            const SearchOptions& options, std::optional<Framework> framework,
                            const Json& config, const AsksSmallest& asks_smallest = {});

// Whether that finds any plan.
bool any_offered(const CostModel& cost, const SearchSpace& space, const SearchOptions& options,
                 std::optional<Framework> framework, const Json& config);

// A step of answers, plan and engines, among those that the files of the framework can say and
// check() reads back as they are. No framework, or one whose files say no step: of a training plan
// that they can.
RlSearchResult search_rl_written(const CostModel& cost, const RlJob& job, const SearchSpace& space,
                                 RlSearchOptions options, std::optional<Framework> framework,
                                 const Json& config);

// The same; where no such step fits, what fits all the same.
RlSearchResult search_rl_offered(const CostModel& cost, const RlJob& job, const SearchSpace& space,
                                 const RlSearchOptions& options, std::optional<Framework> framework,
                                 const Json& config);

}  // namespace qplan
