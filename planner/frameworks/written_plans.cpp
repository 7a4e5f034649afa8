#include "planner/frameworks/written_plans.h"

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
  return result.plans.empty() ? search(cost, space, options) : result;
}

}  // namespace qplan
