#include "planner/frameworks/written_plans.h"

#include <algorithm>

namespace qplan {

SearchResult search_written(const CostModel& cost, const SearchSpace& space, SearchOptions options,
                            std::optional<Framework> framework, const Json& config) {
  if (framework) {
    const int gpus_per_node = cost.hardware().link.gpus_per_node;
    options.refuses = [&cost, &config, gpus_per_node, framework](const ParallelPlan& plan) {
      return broken_limit(*framework,
                          {cost.model(), config, plan, cost.recipe().kind, gpus_per_node});
    };
  }
  return search(cost, space, options);
}

SearchResult search_offered(const CostModel& cost, const SearchSpace& space,
                            const SearchOptions& options, std::optional<Framework> framework,
                            const Json& config) {
  if (!framework || !has_files_of(*framework, cost.model())) return search(cost, space, options);
  SearchResult result = search_written(cost, space, options, framework, config);
  if (!result.plans.empty()) return result;
  // Where limits refused nothing, a search without them finds nothing more.
  const bool refused = std::any_of(
      result.infeasible.begin(), result.infeasible.end(),
      [&](const auto& count) { return source_of_rule(count.first, cost.recipe().kind).empty(); });
  return refused ? search(cost, space, options) : result;
}

}  // namespace qplan
