// Time: blocks priced and summarised as delays, stages as powers, the schedule simulated; the same
// simulation with some work free gives the breakdown.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "costmodel/fold/plan_view.h"
#include "costmodel/fold/rank_alone.h"
#include "models/program/merge.h"

namespace qplan {
namespace {

constexpr Seconds kNoLimit(std::numeric_limits<double>::infinity());

// The parts a plan's schedule runs.
struct PartsInUse {
  std::vector<Part> compute, state;
};
PartsInUse parts_in_use(BackwardForm form, bool gather_overlapped, bool reduce_overlapped,
                        bool whole_reductions) {
  PartsInUse use;
  use.compute = compute_parts(form);
  if (gather_overlapped) use.state.push_back(Part::forward_first);
  if (reduce_overlapped && form != BackwardForm::whole) {
    use.state.push_back(Part::backward_weight_last);
  }
  if (reduce_overlapped && form != BackwardForm::split) use.state.push_back(Part::backward_last);
  // What is priced depends on the block's shape and the recipe alone, not on the schedule: it is
  // remembered by shape.
  if (!reduce_overlapped || whole_reductions) use.state.push_back(Part::reduce);
  if (whole_reductions) use.state.push_back(Part::reduce_beside);
  use.state.push_back(Part::clear);
  use.state.push_back(Part::norm);
  use.state.push_back(Part::update);
  return use;
}

// Whether a schedule runs a part that is priced.
bool runs_part(const ScheduleShape& schedule, bool reduce_overlapped, Part part) {
  const bool interleaved = schedule.kind == ScheduleKind::interleaved;
  if (part == Part::reduce) return !reduce_overlapped || schedule.whole_reductions;
  if (part == Part::reduce_beside) return schedule.whole_reductions && interleaved;
  if (part == Part::backward_last) return !(schedule.whole_reductions && interleaved);
  return true;
}

bool is_compute_part(Part part) {
  return part == Part::forward || part == Part::backward || part == Part::backward_input ||
         part == Part::backward_weight;
}

// Moves clocks by precomputed delays of whole stages.
class FoldRunner {
 public:
  FoldRunner(std::size_t stages, std::size_t ranks)
      : stage(stages),
        clear(ranks, no_delay()),
        before(ranks, {no_delay(), no_delay()}),
        after(ranks, no_delay()) {}

  void run(int, const Action& action, StreamClocks& clocks) const {
    const Part part = part_of(action, gather_overlapped, reduce_overlapped);
    clocks = apply((*stage[static_cast<std::size_t>(action.stage)])[at(part)], clocks);
  }
  void run_pair(int, const Action& f, const Action& b, StreamClocks& clocks) {
    const auto key = std::pair{distinct_of[static_cast<std::size_t>(f.stage)],
                               distinct_of[static_cast<std::size_t>(b.stage)]};
    auto it = pairs.find(key);
    if (it == pairs.end()) it = pairs.emplace(key, pair_delay(key.first, key.second)).first;
    clocks = apply(it->second, clocks);
  }
  void begin(int rank, StreamClocks& clocks) const {
    clocks = apply(clear[static_cast<std::size_t>(rank)], clocks);
  }
  void before_norm(int rank, StreamClocks& clocks) const {
    const auto& [reduce, norm] = before[static_cast<std::size_t>(rank)];
    clocks = apply(reduce, clocks);
    join_all(clocks);
    clocks = apply(norm, clocks);
  }
  void update(int rank, StreamClocks& clocks) const {
    clocks = apply(after[static_cast<std::size_t>(rank)], clocks);
  }

  std::vector<const PartDelays*> stage;
  std::vector<StreamDelay> clear;
  std::vector<std::pair<StreamDelay, StreamDelay>> before;  // reduce, norm
  std::vector<StreamDelay> after;
  bool gather_overlapped = false, reduce_overlapped = false;

  // Pairs of distinct stages, made when a schedule first runs them side by side.
  std::vector<int> distinct_of;
  std::map<std::pair<int, int>, StreamDelay> pairs;
  std::function<StreamDelay(int, int)> pair_delay;
};

// One stage's part: runs in order, each a power; backward in reverse.
template <class DelayOf>
StreamDelay stage_delay(const StageRuns& runs, Part part, DelayOf delay_of_run) {
  StreamDelay total = no_delay();
  const bool reverse = runs_backward(part);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[reverse ? runs.size() - 1 - i : i];
    total = then(total, power(delay_of_run(run), run.count));
  }
  return total;
}

// The ends of two steps, and what a steady period of each added to the clocks.
struct TwoSteps {
  Seconds end1, end2;
  std::optional<Seconds> period1, period2;
};

TwoSteps simulate(FoldRunner& runner, const ScheduleShape& shape, int stages,
                  const PipelineLinks& links, bool watch) {
  const auto actions = build_schedule(shape);
  PipelineState state(shape, stages);
  Snapshots first, second;
  TwoSteps t;
  t.end1 = state.step(runner, actions, links, watch ? &first : nullptr);
  t.end2 = state.step(runner, actions, links, watch ? &second : nullptr);
  t.period1 = steady_period(first);
  t.period2 = steady_period(second);
  return t;
}

// Whether `periods` periods more delayed the ends by as much as the fastest clock moved. A later
// end is a longest path, which grows by at most that much a period and never by less than before;
// from here on it grows by just that.
bool settled(const TwoSteps& few, const TwoSteps& more, double periods) {
  if (!more.period1 || !more.period2) return false;
  const auto close = [](Seconds a, Seconds b, Seconds scale) {
    return std::abs((a - b).value()) <= 1e-11 * scale.value();
  };
  return close(more.end1 - few.end1, *more.period1 * periods, more.end1) &&
         close(more.end2 - few.end2, (*more.period1 + *more.period2) * periods, more.end2);
}

// End of step 2 minus end of step 1. Most of a long steady part is left out once two lengths of it
// show that more would only repeat it.
Seconds step_seconds(FoldRunner& runner, const ScheduleShape& shape, int stages,
                     const PipelineLinks& links) {
  const std::int64_t all = steady_part(shape, 0).count;
  // A schedule may keep swinging (a cycle of waits through several ranks takes several periods), so
  // two lengths are tried, no more.
  for (const int periods : {6, 24}) {
    if (4 * periods >= all) break;
    const Shortened few = shorten(shape, periods), more = shorten(shape, 2 * periods);
    const TwoSteps a = simulate(runner, few.shape, stages, links, true);
    const TwoSteps b = simulate(runner, more.shape, stages, links, true);
    if (settled(a, b, periods)) {
      return b.end2 - b.end1 + *b.period2 * static_cast<double>(more.left_out);
    }
  }
  const TwoSteps t = simulate(runner, shape, stages, links, false);
  return t.end2 - t.end1;
}

}  // namespace

// How long a stage's output is under way to the next. Where a boundary leaves a pod, messages put
// `pod_load` on the pod's links.
Seconds hop_time(const CostModel& cost, const ParallelPlan& plan, const RankGrid& grid,
                 bool crosses, double pod_load = 0) {
  const BlockShape base = base_shape(cost.model(), plan, cost.recipe(), cost.facts().moe_imbalance);
  const Bytes whole = boundary_bytes(cost.model(), base);
  if (!cost.recipe().host.scatters_boundary || base.sequence_parallel || base.tp == 1) {
    return send_recv_price(whole, crosses, cost.hardware(), pod_load).time;
  }
  const Collective gather{CollectiveKind::all_gather, Axis::tp, whole};
  return send_recv_price(whole * (1.0 / base.tp), crosses, cost.hardware(), pod_load).time +
         collective_price(gather, grid.shape(Axis::tp), cost.hardware()).time;
}

void PipelineLinks::send_no_faster_than(const PipelineLinks& other) {
  if (sends.size() < other.sends.size()) sends.assign(other.sends.size(), send);
  for (std::size_t i = 0; i < sends.size(); ++i) {
    sends[i] = std::max(sends[i], other.sends.empty() ? other.send : other.sends[i]);
  }
  send = std::max(send, other.send);
}

PipelineLinks pipeline_links(const CostModel& cost, const ParallelPlan& plan,
                             const RankGrid& grid) {
  // Interleaved and zero-bubble schedules send beside compute; plain 1F1B as the recipe says.
  const bool overlapped = cost.recipe().host.overlaps_p2p ||
                          plan.schedule == ScheduleKind::interleaved ||
                          splits_backward(plan.schedule);
  const bool host_waits = cost.recipe().host.synchronous_p2p && !overlapped;
  const std::optional<RingDelays>& ring = cost.recipe().host.ring;
  const bool stalls =
      ring && host_waits && grid.shape(Axis::pp).nodes > 1 && grid.shape(Axis::tp).nodes > 2;
  const bool crosses = grid.shape(Axis::pp).nodes > 1;
  std::vector<Seconds> sends;
  if (grid.shape(Axis::pp).pods.edge > 0) {
    for (int rank = 0; rank < plan.pp; ++rank) {
      sends.push_back(hop_time(cost, plan, grid, crosses, grid.boundary_load(rank)));
    }
  }
  return {.send = hop_time(cost, plan, grid, crosses),
          .sends = std::move(sends),
          .overlapped = overlapped,
          .host_waits = host_waits,
          .stall = stalls ? ring->stalled_message : Seconds(0),
          .step_overhead = cost.recipe().host.step_overhead};
}

// The stages of a plan on one kind of GPU, and the links between them.
struct CostModel::StageTimes {
  std::vector<PartDelays> distinct;  // of each distinct stage
  StreamDelay edge_norm, edge_update;
  PipelineLinks links;
};

CostModel::StageTimes CostModel::stage_times(const PlanView& v, FreeWork free) const {
  const ParallelPlan& plan = *v.plan;
  const RankGrid grid = rank_grid(plan, facts_);
  const CostContext context =
      remembering(context_of(plan, hardware_, grid, recipe_, facts_), memo_->step_ratios);
  const StagePricer pricer(model_, recipe_, context);
  const bool reduce_overlapped = plan.overlap.has(OverlapKind::grad);
  const PartsInUse parts = parts_in_use(v.backward, plan.overlap.has(OverlapKind::param),
                                        reduce_overlapped, recipe_.states.whole_reductions);
  const std::uint64_t facts = compute_facts(context);
  const std::uint64_t state_facts = facts_of(kAllAxes, context);

  // A breakdown's prices are used once: a memo of its own, dropped at the end.
  SharedMemo<DelayKey, BlockDelays, DelayHash> own_compute, own_state;
  auto& compute_memo = free.bits == 0 ? memo_->compute_delays : own_compute;
  auto& state_memo = free.bits == 0 ? memo_->state_delays : own_state;
  const auto compute_delays = [&](const BlockShape& shape) -> const BlockDelays& {
    const DelayKey key{compute_shape(shape), facts, graphs_of(plan), v.backward};
    return compute_memo.get(key, [&] { return pricer.delays(key.shape, parts.compute, free); });
  };
  const auto state_delays = [&](const BlockShape& shape) -> const BlockDelays& {
    const DelayKey key{shape, state_facts, graphs_of(plan), v.backward};
    return state_memo.get(key, [&] { return pricer.delays(shape, parts.state, free); });
  };
  const auto delay = [&](const Run& run, Part part) -> const StreamDelay& {
    return is_compute_part(part) ? compute_delays(run.shape).of(part)
                                 : state_delays(run.shape).of(part);
  };

  StageTimes times;
  times.distinct.resize(v.stages.distinct.size());
  for (std::size_t i = 0; i < times.distinct.size(); ++i) {
    for (const auto* list : {&parts.compute, &parts.state}) {
      for (const Part part : *list) {
        if (!runs_part(v.schedule, reduce_overlapped, part)) continue;
        times.distinct[i][at(part)] =
            stage_delay(v.stages.distinct[i], part,
                        [&](const Run& run) -> StreamDelay { return delay(run, part); });
      }
    }
  }
  BlockShape edge_shape = state_shape(v.base);
  edge_shape.kind = BlockKind::step_edge;
  const BlockDelays& edge = state_delays(edge_shape);
  times.edge_norm = edge.of(Part::norm);
  times.edge_update = edge.of(Part::update);
  times.links = pipeline_links(*this, plan, grid);
  return times;
}

std::optional<Seconds> CostModel::step_time_within(const PlanView& v, FreeWork free,
                                                   Seconds limit) const {
  const ParallelPlan& plan = *v.plan;
  const bool reduce_overlapped = plan.overlap.has(OverlapKind::grad);

  // By the kind of GPU that a pipeline rank is on.
  std::map<const CostModel*, StageTimes> times;
  PipelineLinks links;
  for (const CostModel* kind : kinds_of(plan)) {
    StageTimes own =
        kind == this ? stage_times(v, free) : kind->stage_times(kind->view(plan), free);
    if (times.empty()) links = own.links;
    links.send_no_faster_than(own.links);
    links.step_overhead = std::max(links.step_overhead, own.links.step_overhead);
    times.emplace(kind, std::move(own));
  }
  // Between two kinds lies a network, whose slower cards all of its messages are taken to wait for.
  if (times.size() > 1) {
    for (const auto& [kind, own] : times) {
      links.send_no_faster_than({.send = kind->crossing(plan), .step_overhead = {}});
    }
  }

  FoldRunner runner(v.stages.of_stage.size(), static_cast<std::size_t>(plan.pp));
  runner.gather_overlapped = plan.overlap.has(OverlapKind::param);
  runner.reduce_overlapped = reduce_overlapped;
  const auto times_of = [&](std::size_t rank) -> const StageTimes& {
    return times.at(&of_rank(plan, static_cast<int>(rank)));
  };
  for (std::size_t i = 0; i < runner.stage.size(); ++i) {
    const auto rank =
        static_cast<std::size_t>(rank_of_stage(plan.schedule, plan.pp, static_cast<int>(i)));
    const PartDelays& own = times_of(rank).distinct[static_cast<std::size_t>(v.stages.of_stage[i])];
    runner.stage[i] = &own;
    if (!reduce_overlapped) {
      runner.before[rank].first = then(runner.before[rank].first, own[at(Part::reduce)]);
    }
    runner.clear[rank] = then(runner.clear[rank], own[at(Part::clear)]);
    runner.before[rank].second = then(runner.before[rank].second, own[at(Part::norm)]);
    runner.after[rank] = then(runner.after[rank], own[at(Part::update)]);
  }
  for (std::size_t rank = 0; rank < runner.after.size(); ++rank) {
    auto& norm = runner.before[rank].second;
    norm = then(norm, times_of(rank).edge_norm);
    runner.after[rank] = then(runner.after[rank], times_of(rank).edge_update);
  }

  // Passes side by side, which clusters of several kinds have none of (rule kinds_side_by_side).
  const RankGrid grid = rank_grid(plan, facts_);
  const CostContext context =
      remembering(context_of(plan, hardware_, grid, recipe_, facts_), memo_->step_ratios);
  const std::uint64_t facts = compute_facts(context);
  runner.distinct_of = v.stages.of_stage;
  SharedMemo<PairKey, StreamDelay, PairHash> own_pairs;
  SharedMemo<DelayKey, BlockDelays, DelayHash> own_alone;
  auto& pair_memo = free.bits == 0 ? memo_->pair_delays : own_pairs;
  auto& alone_memo = free.bits == 0 ? memo_->compute_delays : own_alone;
  const StagePricer pricer(model_, recipe_, context);
  const auto alone_delays = [&](const BlockShape& shape) -> const BlockDelays& {
    const DelayKey key{compute_shape(shape), facts, graphs_of(plan), v.backward};
    return alone_memo.get(
        key, [&] { return pricer.delays(key.shape, compute_parts(v.backward), free); });
  };
  runner.pair_delay = [&](int f, int b) {
    StreamDelay total = no_delay();
    for (const PairedRun& run : pair_stages(v.stages.distinct[static_cast<std::size_t>(f)],
                                            v.stages.distinct[static_cast<std::size_t>(b)])) {
      if (run.forward == nullptr || run.backward == nullptr) {
        const Part part = run.forward != nullptr ? Part::forward : Part::backward;
        const BlockShape& shape = run.forward != nullptr ? *run.forward : *run.backward;
        total = then(total, power(alone_delays(shape).of(part), run.count));
        continue;
      }
      const PairKey key{{compute_shape(*run.forward), facts, graphs_of(plan)},
                        {compute_shape(*run.backward), facts, graphs_of(plan)}};
      const StreamDelay& pair = pair_memo.get(key, [&] {
        const PricedPart priced =
            price_pair(build_block(model_, recipe_, key.forward.shape),
                       build_block(model_, recipe_, key.backward.shape), context);
        return delay_of(priced.ops, without(priced, Part::forward, free));
      });
      total = then(total, power(pair, run.count));
    }
    return total;
  };
  if (free.has(Cost::p2p)) {
    links.send = Seconds(0);
    links.sends.clear();
  }
  if (free.has(Cost::host)) links.step_overhead = Seconds(0);
  if (limit < kNoLimit && !v.schedule.pairs) {
    const Shortened few = shorten(v.schedule, 2 * RankAlone<FoldRunner>::kPeriods);
    const Actions& actions =
        memo_->actions.get(few.shape, [&] { return build_schedule(few.shape); });
    RankAlone ranks(runner, few, actions, links);
    for (int rank = 0; rank < plan.pp; ++rank) {
      if (ranks.least(rank) > limit) return std::nullopt;
    }
  }
  return step_seconds(runner, v.schedule, static_cast<int>(runner.stage.size()), links);
}

// How long a stage's output takes over the network, wherever the pipeline lies.
Seconds CostModel::crossing(const ParallelPlan& plan) const {
  return hop_time(*this, plan, rank_grid(plan, facts_), true);
}

Seconds CostModel::step_time(const PlanView& v, FreeWork free) const {
  return *step_time_within(v, free, kNoLimit);
}

Seconds CostModel::step_time(const ParallelPlan& plan) const {
  return step_time(view(plan), FreeWork{});
}

std::optional<Seconds> CostModel::step_time_within(const ParallelPlan& plan, Seconds limit) const {
  return step_time_within(view(plan), FreeWork{}, limit);
}

}  // namespace qplan
