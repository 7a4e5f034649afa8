// Time of a step of which nothing is trained: the forwards of the plan's schedule, in its order.

#include <algorithm>
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
  const auto stage_forward = [&plan](const CostModel& kind, const PlanView& own, std::size_t i) {
    const RankGrid grid = rank_grid(plan, kind.facts_);
    const CostContext context = remembering(
        context_of(plan, kind.hardware_, grid, kind.recipe_, kind.facts_), kind.memo_->step_ratios);
    const StagePricer pricer(kind.model_, kind.recipe_, context);
    const std::uint64_t facts = compute_facts(context);
    StreamDelay total = no_delay();
    for (const Run& run : own.stages.runs(i)) {
      const DelayKey key{compute_shape(run.shape), facts, graphs_of(plan), own.backward};
      const BlockDelays& delays = kind.memo_->compute_delays.get(
          key, [&] { return pricer.delays(key.shape, compute_parts(own.backward), FreeWork{}); });
      total = then(total, power(delays.of(Part::forward), run.count));
    }
    return total;
  };
  const PlanView v = view(plan);
  ForwardRunner runner;
  for (std::size_t i = 0; i < v.stages.of_stage.size(); ++i) {
    const CostModel& kind =
        of_rank(plan, rank_of_stage(plan.schedule, plan.pp, static_cast<int>(i)));
    runner.stage.push_back(&kind == this ? stage_forward(*this, v, i)
                                         : stage_forward(kind, kind.view(plan), i));
  }
  const RankGrid grid = rank_grid(plan, facts_);
  PipelineLinks links = pipeline_links(*this, plan, grid);
  for (const CostModel* kind : kinds_of(plan)) {
    links.send_no_faster_than({.send = kind->crossing(plan), .step_overhead = {}});
  }
  PipelineState state(v.schedule, static_cast<int>(v.stages.of_stage.size()));
  return state.step(runner, forward_schedule(v.schedule), links);
}

}  // namespace qplan
