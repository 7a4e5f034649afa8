#include "costmodel/fold/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "costmodel/fold/attention_choice.h"
#include "costmodel/fold/block_cost.h"
#include "costmodel/fold/pipeline.h"
#include "models/program/merge.h"
#include "models/program/rank_program.h"

namespace qplan {
namespace {

// Every distinct (block, part) priced once; ops are then walked one by one.
class PricedProgram {
 public:
  PricedProgram(const StepProgram& program, const CostContext& context)
      : program_(program), context_(context) {}

  const PricedPart& part(BlockId block, Part part) {
    const auto key = std::pair{block, part};
    const auto it = parts_.find(key);
    if (it != parts_.end()) return it->second;
    const Block& b = program_.blocks[static_cast<std::size_t>(block)];
    return parts_.emplace(key, price_part(b, part, context_)).first->second;
  }

  const PricedPart& pair(BlockId forward, BlockId backward) {
    const auto key = std::pair{forward, backward};
    const auto it = pairs_.find(key);
    if (it != pairs_.end()) return it->second;
    const auto& blocks = program_.blocks;
    return pairs_
        .emplace(key, price_pair(blocks[static_cast<std::size_t>(forward)],
                                 blocks[static_cast<std::size_t>(backward)], context_))
        .first->second;
  }

  [[nodiscard]] const StepProgram& program() const { return program_; }

  // A stage as the runs that pair_stages() understands, and the block of a shape.
  [[nodiscard]] StageRuns runs_of(int stage) const {
    StageRuns runs;
    for (const Stage::Part& run : program_.stages[static_cast<std::size_t>(stage)].runs) {
      runs.push_back({program_.shapes[static_cast<std::size_t>(run.block)], run.count});
    }
    return runs;
  }
  [[nodiscard]] BlockId block_of(const BlockShape& shape) const {
    const auto it = std::find(program_.shapes.begin(), program_.shapes.end(), shape);
    return static_cast<BlockId>(it - program_.shapes.begin());
  }

  // Calls visit(block, copy of the layer) over a stage, in the order the part walks it.
  template <class Visit>
  void each_layer(int stage, Part part, Visit visit) const {
    const auto& runs = program_.stages[static_cast<std::size_t>(stage)].runs;
    const bool reverse = runs_backward(part);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const Stage::Part& run = runs[reverse ? runs.size() - 1 - i : i];
      for (int copy = 0; copy < run.count; ++copy) visit(run.block);
    }
  }

 private:
  const StepProgram& program_;
  CostContext context_;
  std::map<std::pair<BlockId, Part>, PricedPart> parts_;
  std::map<std::pair<BlockId, BlockId>, PricedPart> pairs_;
};

std::string_view category_of(Part part) {
  switch (part) {
    case Part::forward:
    case Part::forward_first:
      return "forward";
    case Part::backward:
    case Part::backward_last:
    case Part::backward_input:
      return "backward";
    case Part::backward_weight:
    case Part::backward_weight_last:
      return "weight gradient";
    case Part::reduce:
    case Part::reduce_beside:
      return "reduce";
    case Part::clear:
    case Part::norm:
    case Part::update:
      return "optimizer";
  }
  return "";
}

// Runs every op, one clock column; may write a trace.
class ReplayRunner {
 public:
  explicit ReplayRunner(PricedProgram& priced) : priced_(priced) {}

  void run(int rank, const Action& action, StreamClocks& clocks) {
    const StepProgram& p = priced_.program();
    const Part part = part_of(action, p.gather_overlapped, p.reduce_overlapped);
    const bool reduces = action.kind == ActionKind::reduce;
    const Stream stream = reduces ? Stream::reduce_comm : Stream::compute;
    const Seconds begin = std::max(clocks(index(Stream::compute)), clocks(index(stream))).seconds();
    stage(rank, action, part, clocks);
    if (trace != nullptr && grain == TraceGrain::action) {
      add(rank, stream, to_string(action), category_of(part), action, begin,
          std::max(begin, clocks(index(stream)).seconds()));
    }
  }

  void run_pair(int rank, const Action& f, const Action& b, StreamClocks& clocks) {
    const Seconds begin = clocks(index(Stream::compute)).seconds();
    const StageRuns forward = priced_.runs_of(f.stage), backward = priced_.runs_of(b.stage);
    for (const PairedRun& run : pair_stages(forward, backward)) {
      for (int copy = 0; copy < run.count; ++copy) {
        if (run.backward == nullptr) {
          ops(rank, f, priced_.part(priced_.block_of(*run.forward), Part::forward), Part::forward,
              clocks);
        } else if (run.forward == nullptr) {
          ops(rank, b, priced_.part(priced_.block_of(*run.backward), Part::backward),
              Part::backward, clocks);
        } else {
          ops(rank, f,
              priced_.pair(priced_.block_of(*run.forward), priced_.block_of(*run.backward)),
              Part::forward, clocks);
        }
      }
    }
    if (trace != nullptr && grain == TraceGrain::action) {
      // Drawn one after the other, each with half of the time that they share.
      const Seconds end = clocks(index(Stream::compute)).seconds();
      const Seconds middle = begin + (end - begin) / 2.0;
      add(rank, Stream::compute, to_string(f), "forward", f, begin, middle);
      add(rank, Stream::compute, to_string(b), "backward", b, middle, end);
    }
  }

  void begin(int rank, StreamClocks& clocks) { edge_part(rank, Part::clear, clocks); }

  void before_norm(int rank, StreamClocks& clocks) {
    const StepProgram& p = priced_.program();
    if (!p.reduce_overlapped) edge_part(rank, Part::reduce, clocks);
    join_all(clocks);
    edge_part(rank, Part::norm, clocks);
    ops(rank, kEdge, p.edge, Part::norm, clocks);
  }

  void update(int rank, StreamClocks& clocks) {
    edge_part(rank, Part::update, clocks);
    ops(rank, kEdge, priced_.program().edge, Part::update, clocks);
  }

  std::int64_t count = 0;
  Trace* trace = nullptr;
  TraceGrain grain = TraceGrain::action;

 private:
  static constexpr Action kEdge{ActionKind::forward, -1, 0};

  void stage(int rank, const Action& action, Part part, StreamClocks& clocks) {
    priced_.each_layer(action.stage, part,
                       [&](BlockId block) { ops(rank, action, block, part, clocks); });
  }

  // All stages of a rank, once a step.
  void edge_part(int rank, Part part, StreamClocks& clocks) {
    const StepProgram& p = priced_.program();
    const Seconds begin = clocks(index(Stream::compute)).seconds();
    for (std::size_t i = 0; i < p.stages.size(); ++i) {
      if (rank_of_stage(p.schedule.kind, p.schedule.pp, static_cast<int>(i)) != rank) continue;
      priced_.each_layer(static_cast<int>(i), part,
                         [&](BlockId block) { ops(rank, kEdge, block, part, clocks); });
    }
    if (trace != nullptr && grain == TraceGrain::action) {
      add(rank, Stream::compute, std::string(category_of(part)), category_of(part), kEdge, begin,
          clocks(index(Stream::compute)).seconds());
    }
  }

  void ops(int rank, const Action& action, BlockId block, Part part, StreamClocks& clocks) {
    ops(rank, action, priced_.part(block, part), part, clocks);
  }

  void ops(int rank, const Action& action, const PricedPart& priced, Part part,
           StreamClocks& clocks) {
    for (std::size_t i = 0; i < priced.ops.size(); ++i) {
      const Op& op = priced.ops[i];
      advance(clocks, op, priced.durations[i]);
      ++count;
      if (trace == nullptr || grain != TraceGrain::op || std::holds_alternative<Join>(op.work)) {
        continue;
      }
      const Seconds end = clocks(index(op.stream)).seconds();
      add(rank, op.stream, to_string(op.work), category_of(part), action,
          end - priced.durations[i].time, end);
    }
  }

  void add(int rank, Stream stream, std::string name, std::string_view category,
           const Action& action, Seconds begin, Seconds end) {
    trace->events.push_back({.rank = rank,
                             .stream = stream,
                             .name = std::move(name),
                             .category = std::string(category),
                             .action = action,
                             .begin = begin,
                             .end = end});
  }

  PricedProgram& priced_;
};

// The program, its context and links, as the cost model sees them.
struct Session {
  StepProgram program;
  CostContext context;
  PipelineLinks links;

  Session(const CostModel& cost, const ParallelPlan& plan)
      : program(build_step_program(cost.model(), plan_on(cost.hardware(), plan, cost.recipe()),
                                   cost.recipe(), cost.facts())),
        context(context_of(plan, cost.hardware(), program.grid, cost.recipe(), cost.facts())),
        links(pipeline_links(cost, plan, program.grid)) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
};

}  // namespace

Replay replay(const CostModel& cost, const ParallelPlan& plan) {
  const Session session(cost, plan);
  PricedProgram priced(session.program, session.context);
  ReplayRunner runner(priced);
  PipelineState state(session.program.schedule, static_cast<int>(session.program.stages.size()));
  const Seconds end1 = state.step(runner, session.program.actions, session.links);
  const std::int64_t ops = runner.count;
  const Seconds end2 = state.step(runner, session.program.actions, session.links);
  Bytes reserves;
  for (const NamedReserve& r :
       framework_reserves(cost.model(), plan, cost.recipe(), cost.hardware())) {
    reserves += r.bytes;
  }
  Replay result{end2 - end1, {}, ops};
  for (int rank = 0; rank < plan.pp; ++rank) {
    result.peak.push_back(reserves + rank_program(session.program, rank).live_peak);
  }
  return result;
}

Trace trace_step(const CostModel& cost, const ParallelPlan& plan, TraceGrain grain) {
  if (!cost.kinds().empty()) throw Error("a step on GPUs of several kinds is priced, not drawn");
  const Session session(cost, plan);
  PricedProgram priced(session.program, session.context);
  ReplayRunner runner(priced);
  PipelineState state(session.program.schedule, static_cast<int>(session.program.stages.size()));
  const Seconds end1 = state.step(runner, session.program.actions, session.links);
  Trace trace;
  trace.ranks = plan.pp;
  runner.trace = &trace;
  runner.grain = grain;
  const Seconds end2 = state.step(runner, session.program.actions, session.links);
  // A rank may begin the step before the slowest has ended the last one; its first event is time
  // zero.
  Seconds origin = end1;
  for (const TraceEvent& e : trace.events) origin = std::min(origin, e.begin);
  trace.end = end2 - origin;
  for (TraceEvent& e : trace.events) {
    e.begin -= origin;
    e.end -= origin;
  }
  return trace;
}

Trace trace_alone(const CostModel& cost, const ParallelPlan& plan) {
  HardwareProfile hardware = cost.hardware();
  hardware.contention = Contention{};
  Recipe recipe = cost.recipe();
  recipe.beside_nvlink.reset();
  return trace_step(CostModel(cost.model(), recipe, hardware, cost.facts()), plan, TraceGrain::op);
}

}  // namespace qplan
