// Time of a step of which nothing is trained: the forwards of the plan's schedule, in its order.

#include <vector>

#include "costmodel/fold/plan_view.h"

namespace qplan {
namespace {

// Moves a rank's clocks by what one forward of a stage does to them; a step's ends do nothing.
struct ForwardRunner {
  std::vector<StreamDelay> stage;
  void run(int, const Action& action, StreamClocks& clocks) const {
    clocks = apply(stage[static_cast<std::size_t>(action.stage)], clocks);
  }
  void run_pair(int rank, const Action& forward, const Action&, StreamClocks& clocks) const {
    run(rank, forward, clocks);
  }
  void begin(int, StreamClocks&) const {}
  void before_norm(int, StreamClocks&) const {}
  void update(int, StreamClocks&) const {}
};

}  // namespace

Seconds CostModel::forward_time(const ParallelPlan& plan) const {
  const PlanView v = view(plan);
  const RankGrid grid(plan, facts_.nvlink_domain);
  const CostContext context = context_of(plan, hardware_, grid, recipe_, facts_);
  const StagePricer pricer(model_, recipe_, context);
  const std::uint64_t groups = compute_groups(plan, grid, recipe_);
  ForwardRunner runner;
  for (std::size_t i = 0; i < v.stages.of_stage.size(); ++i) {
    StreamDelay total = no_delay();
    for (const Run& run : v.stages.runs(i)) {
      const DelayKey key{compute_shape(run.shape), groups, graphs_of(plan), v.backward};
      const BlockDelays& delays = memo_->compute_delays.get(
          key, [&] { return pricer.delays(key.shape, compute_parts(v.backward), FreeWork{}); });
      total = then(total, power(delays.of(Part::forward), run.count));
    }
    runner.stage.push_back(total);
  }
  PipelineState state(v.schedule, static_cast<int>(v.stages.of_stage.size()));
  return state.step(runner, forward_schedule(v.schedule), pipeline_links(*this, plan, grid));
}

}  // namespace qplan
