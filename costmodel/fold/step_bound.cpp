// What no step can undercut: what the blocks take on the compute stream, one microbatch, summed
// over stages and microbatches.

#include <algorithm>
#include <numeric>

#include "costmodel/fold/plan_view.h"

namespace qplan {
namespace {

// Of each distinct stage, from what `work_of` says of a block.
template <class WorkOf>
std::vector<StageBusy> sum_over(const StageList& stages, WorkOf work_of) {
  std::vector<StageBusy> distinct(stages.distinct.size());
  for (std::size_t i = 0; i < distinct.size(); ++i) {
    StageBusy& stage = distinct[i];
    for (const Run& run : stages.distinct[i]) {
      const double before = stage.total();
      const BlockBusy block = work_of(run.shape);
      stage.forward += block.forward * run.count;
      stage.backward += block.backward * run.count;
      stage.weight += block.weight * run.count;
      if (run.shape.kind == BlockKind::decoder) stage.decoder += stage.total() - before;
    }
  }
  return distinct;
}

// `seconds_of` a part, for the parts that `form` runs.
template <class SecondsOf>
BlockBusy busy_of(BackwardForm form, SecondsOf seconds_of) {
  BlockBusy block;
  block.forward = seconds_of(Part::forward);
  if (form == BackwardForm::split) {
    block.backward = seconds_of(Part::backward_input);
    block.weight = seconds_of(Part::backward_weight);
  } else {
    block.backward = seconds_of(Part::backward);
  }
  return block;
}

// Compute of both directions, with nothing beside it.
double alone(const Block& block, const CostContext& context) {
  double sum = 0;
  for (const OpList* ops : {&block.forward, &block.backward}) {
    for (const Op& op : *ops) {
      if (op.stream == Stream::compute) sum += price_of(op, context).time.value();
    }
  }
  return sum;
}

// T >= sum over earlier stages of f, + m (f + b + w) of a rank's stages, + sum of b on the way
// back. Of paired passes a rank's own work is all that bounds the step; and a split backward lets a
// rank end with weight gradients that nobody waits for.
StepBound bound_of(const ParallelPlan& plan, const ScheduleShape& schedule, const StageList& stages,
                   const std::vector<StageBusy>& distinct) {
  const auto stage = [&](std::size_t i) -> const StageBusy& {
    return distinct[static_cast<std::size_t>(stages.of_stage[i])];
  };
  std::vector<double> rank(static_cast<std::size_t>(plan.pp), 0);
  for (std::size_t i = 0; i < stages.of_stage.size(); ++i) {
    const int r = rank_of_stage(plan.schedule, plan.pp, static_cast<int>(i));
    rank[static_cast<std::size_t>(r)] += stage(i).total();
  }
  const auto m = static_cast<double>(microbatches_of_stage(schedule));
  double longest = 0, there = 0, back = 0;
  for (std::size_t r = 0; r < rank.size(); ++r) {
    longest = std::max(longest, there + m * rank[r] + back);
    if (schedule.pairs) continue;
    there += stage(r).forward;
    if (backward_form(plan.schedule) != BackwardForm::split) back += stage(r).backward;
  }
  const double mean = std::accumulate(rank.begin(), rank.end(), 0.0) / plan.pp;
  return {.step = Seconds(longest),
          .evened = Seconds(m * mean),
          .imbalance = mean > 0 ? *std::max_element(rank.begin(), rank.end()) / mean : 1};
}

}  // namespace

// Side by side, communication may vanish; the compute of both directions stays, and `forward` holds
// it.
std::vector<StageBusy> CostModel::busy(const PlanView& v) const {
  if (v.schedule.pairs) return least_busy(v, nullptr);
  const ParallelPlan& plan = *v.plan;
  const RankGrid grid(plan, facts_.nvlink_domain);
  const StagePricer pricer(model_, recipe_, context_of(plan, hardware_, grid, recipe_, facts_));
  const std::vector<Part> parts = compute_parts(v.backward);
  const std::uint64_t groups = compute_groups(plan, grid, recipe_);
  const int c = index(Stream::compute);
  return sum_over(v.stages, [&](const BlockShape& shape) {
    const DelayKey key{compute_shape(shape), groups, graphs_of(plan), v.backward};
    const BlockDelays& delays =
        memo_->compute_delays.get(key, [&] { return pricer.delays(key.shape, parts, FreeWork{}); });
    return busy_of(v.backward, [&](Part part) { return delays.of(part)(c, c).seconds().value(); });
  });
}

std::vector<StageBusy> CostModel::least_busy(const PlanView& v, const SeenRuns* seen) const {
  const ParallelPlan& plan = *v.plan;
  const RankGrid grid(plan, facts_.nvlink_domain);
  const CostContext context = context_of(plan, hardware_, grid, recipe_, facts_);
  auto& memo = v.schedule.pairs ? memo_->alone : memo_->least;
  // Layers that differ in their neighbours alone follow each other.
  DelayKey key{{}, groups_of(kModelAxes, grid, recipe_), graphs_of(plan), v.backward};
  const BlockBusy* same = nullptr;
  const auto least = [&](const BlockShape& of_run) -> const BlockBusy& {
    const BlockShape shape = own_work_shape(of_run);
    if (same != nullptr && key.shape == shape) return *same;
    key.shape = shape;
    same = &memo.get(key, [&] {
      const Block block = build_block(model_, recipe_, shape);
      if (v.schedule.pairs) return BlockBusy{alone(block, context), 0, 0};
      return busy_of(v.backward, [&](Part part) {
        return least_compute(part_ops(block, part), context).value();
      });
    });
    return *same;
  };
  if (seen == nullptr) return sum_over(v.stages, least);
  std::size_t run = 0;
  return sum_over(v.stages, [&](const BlockShape& of_run) -> const BlockBusy& {
    SeenBlock& block = (*seen->blocks)[static_cast<std::size_t>(seen->places[run++])];
    if (!block.least) block.least = least(of_run);
    return *block.least;
  });
}

StepBound CostModel::lower_bound(const ParallelPlan& plan) const {
  const PlanView v = view(plan);
  return bound_of(plan, v.schedule, v.stages, busy(v));
}

StepBound CostModel::own_work_bound(const ParallelPlan& plan) const {
  return own_work_bound(view(plan), nullptr);
}

StepBound CostModel::own_work_bound(const PlanView& v, const SeenRuns* seen) const {
  return bound_of(*v.plan, v.schedule, v.stages, least_busy(v, seen));
}

EndWork CostModel::end_work(const ParallelPlan& plan) const {
  const PlanView v = view(plan);
  const std::vector<StageBusy> distinct = busy(v);
  double decoder = 0;
  for (const int i : v.stages.of_stage) decoder += distinct[static_cast<std::size_t>(i)].decoder;
  const double layer = decoder / static_cast<double>(model_.num_layers);
  const auto besides = [&](int i) {
    const StageBusy& stage = distinct[static_cast<std::size_t>(i)];
    return (stage.total() - stage.decoder) / layer;
  };
  return {besides(v.stages.of_stage.front()), besides(v.stages.of_stage.back())};
}

}  // namespace qplan
