#include "planner/frameworks/written_plans.h"

#include <algorithm>

#include "planner/frameworks/check.h"
#include "planner/rl/rl_job.h"

namespace qplan {
namespace {

// Whose files of a plan are of a step that makes its answers by engines on the same GPUs.
bool writes_steps(Framework framework) {
  return framework == Framework::slime || framework == Framework::verl ||
         framework == Framework::nemo_rl;
}

// What the engine of such a step takes of the device while the plan trains.
Bytes taken_beside(const CostModel& cost) {
  return engine_asleep(RlJob{}, RolloutLayout{}, cost.hardware());
}

// Whether the files of the plan are, read back, a step of which every phase fits.
bool written_step_fits(const CostModel& cost, Framework framework, const Json& config,
                       const ParallelPlan& plan) {
  const HardwareProfile& hardware = cost.hardware();
  const Subject subject{cost.model(), config, plan, cost.recipe().kind, hardware.link.gpus_per_node,
                        nullptr,      &cost};
  std::vector<ConfigText> texts;
  for (EmittedFile& file : emit(framework, subject, {})) {
    texts.push_back({std::move(file.name), std::move(file.text)});
  }
  const ClusterLimits limits = limits_of(hardware, plan.world(), cost.kinds());
  const Checked read = check(
      texts, CheckQuestion{cost.model(), config, limits, hardware.link.gpus_per_node, {}, {}, {}});
  if (!read.step) return true;
  const auto& [job, layout] = *read.step;
  const ParallelPlan update = update_plan(job, cost.model(), read.plan);
  return rl_faults(job, cost.model(), read.plan, layout, plan.world()).empty() &&
         broken_rule(cost.model(), update, cost.recipe(), limits).empty() &&
         evaluate_rl(cost, job, read.plan, layout, plan.world()).fits;
}

}  // namespace

SearchResult search_written(const CostModel& cost, const SearchSpace& space, SearchOptions options,
                            std::optional<Framework> framework, const Json& config) {
  if (framework) {
    const int gpus_per_node = cost.hardware().link.gpus_per_node;
    options.refuses = [&cost, &config, gpus_per_node, framework](const ParallelPlan& plan) {
      return broken_limit(*framework,
                          {cost.model(), config, plan, cost.recipe().kind, gpus_per_node});
    };
  }
  const bool files = framework && has_files_of(*framework, cost.model());
  if (files && options.alone && writes_steps(*framework)) {
    options.beside = taken_beside(cost);
    options.accepts = [&cost, &config, framework](const ParallelPlan& plan) {
      return written_step_fits(cost, *framework, config, plan);
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
  if (!refused) return result;
  SearchOptions free = options;
  if (options.alone && writes_steps(*framework)) free.beside = taken_beside(cost);
  return search(cost, space, free);
}

}  // namespace qplan
