// What no step can undercut: what the blocks take on the compute stream, one microbatch, summed
// over stages and microbatches.

#include <algorithm>
#include <map>
#include <numeric>

#include "costmodel/fold/plan_view.h"

namespace qplan {

// The stages of a plan, each on its kind of GPU.
struct CostModel::StagesOfKinds {
  std::vector<StageBusy> stages;
  std::vector<double> layer;  // what a decoder layer takes on each pipeline rank
  double evened = 0;          // what one rank takes if all take the same, by any layout
};

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
template <class Stages>
StepBound bound_of(const ParallelPlan& plan, const ScheduleShape& schedule, const Stages& of) {
  const auto stage = [&](std::size_t i) -> const StageBusy& { return of.stages[i]; };
  std::vector<double> rank(static_cast<std::size_t>(plan.pp), 0);
  for (std::size_t i = 0; i < of.stages.size(); ++i) {
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
  return {.step = Seconds(longest),
          .evened = Seconds(m * of.evened),
          .imbalance = of.evened > 0 ? *std::max_element(rank.begin(), rank.end()) / of.evened : 1};
}

}  // namespace

// Side by side, communication may vanish; the compute of both directions stays, and `forward` holds
// it.
std::vector<StageBusy> CostModel::busy(const PlanView& v) const {
  if (v.schedule.pairs) return least_busy(v, nullptr);
  const ParallelPlan& plan = *v.plan;
  const RankGrid grid = rank_grid(plan, facts_);
  const CostContext context =
      remembering(context_of(plan, hardware_, grid, recipe_, facts_), memo_->step_ratios);
  const StagePricer pricer(model_, recipe_, context);
  const std::vector<Part> parts = compute_parts(v.backward);
  const std::uint64_t facts = compute_facts(context);
  const int c = index(Stream::compute);
  return sum_over(v.stages, [&](const BlockShape& shape) {
    const DelayKey key{compute_shape(shape), facts, graphs_of(plan), v.backward};
    const BlockDelays& delays =
        memo_->compute_delays.get(key, [&] { return pricer.delays(key.shape, parts, FreeWork{}); });
    return busy_of(v.backward, [&](Part part) { return delays.of(part)(c, c).seconds().value(); });
  });
}

std::vector<StageBusy> CostModel::least_busy(const PlanView& v, const SeenRuns* seen) const {
  const ParallelPlan& plan = *v.plan;
  const RankGrid grid = rank_grid(plan, facts_);
  const CostContext context =
      remembering(context_of(plan, hardware_, grid, recipe_, facts_), memo_->step_ratios);
  auto& memo = v.schedule.pairs ? memo_->alone : memo_->least;
  // Layers that differ in their neighbours alone follow each other.
  DelayKey key{{}, facts_of(kModelAxes, context), graphs_of(plan), v.backward};
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

// A microbatch's work on all ranks of one kind would take the sum of `distinct` over stages; ranks
// that all take t do t over that sum of it each.
template <class BusyOf>
CostModel::StagesOfKinds CostModel::stages_of_kinds(const PlanView& v, BusyOf busy_of_kind) const {
  const ParallelPlan& plan = *v.plan;
  struct OfKind {
    std::vector<StageBusy> distinct;
    double all = 0, layer = 0;
  };
  std::map<const CostModel*, OfKind> kinds;
  StagesOfKinds result;
  double together = 0;
  for (int r = 0; r < plan.pp; ++r) {
    const CostModel& kind = of_rank(plan, r);
    OfKind& of = kinds[&kind];
    if (of.distinct.empty()) {
      of.distinct = &kind == this ? busy_of_kind(*this, v) : busy_of_kind(kind, kind.view(plan));
      double decoder = 0;
      for (const int i : v.stages.of_stage) {
        of.all += of.distinct[static_cast<std::size_t>(i)].total();
        decoder += of.distinct[static_cast<std::size_t>(i)].decoder;
      }
      of.layer = decoder / static_cast<double>(model_.num_layers);
    }
    result.layer.push_back(of.layer);
    if (of.all > 0) together += 1 / of.all;
  }
  result.evened = together > 0 ? 1 / together : 0;
  result.stages.reserve(v.stages.of_stage.size());
  for (std::size_t i = 0; i < v.stages.of_stage.size(); ++i) {
    const int r = rank_of_stage(plan.schedule, plan.pp, static_cast<int>(i));
    const OfKind& of = kinds.at(&of_rank(plan, r));
    result.stages.push_back(of.distinct[static_cast<std::size_t>(v.stages.of_stage[i])]);
  }
  return result;
}

StepBound CostModel::lower_bound(const ParallelPlan& plan) const {
  const PlanView v = view(plan);
  return bound_of(plan, v.schedule,
                  stages_of_kinds(v, [](const CostModel& kind, const PlanView& own) {
                    return kind.busy(own);
                  }));
}

StepBound CostModel::own_work_bound(const ParallelPlan& plan) const {
  return own_work_bound(view(plan), nullptr);
}

StepBound CostModel::own_work_bound(const PlanView& v, const SeenRuns* seen) const {
  return bound_of(*v.plan, v.schedule,
                  stages_of_kinds(v, [&](const CostModel& kind, const PlanView& own) {
                    return kind.least_busy(own, &kind == this ? seen : nullptr);
                  }));
}

EndWork CostModel::end_work(const ParallelPlan& plan) const {
  const PlanView v = view(plan);
  const StagesOfKinds of =
      stages_of_kinds(v, [](const CostModel& kind, const PlanView& own) { return kind.busy(own); });
  const double layer = of.layer.front();
  const auto besides = [&](const StageBusy& stage) {
    return (stage.total() - stage.decoder) / layer;
  };
  EndWork work{besides(of.stages.front()), besides(of.stages.back()), {}};
  if (kinds_.empty()) return work;
  for (const double own : of.layer) work.layer.push_back(own / layer);
  return work;
}

}  // namespace qplan
