#include "costmodel/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "costmodel/pipeline.h"
#include "models/program/merge.h"

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

// Bytes held on one rank, slot by slot, in program order.
class HeapReplay {
 public:
  explicit HeapReplay(const StepProgram& program) : program_(program) {
    const BackwardForm form = backward_form(program.schedule.kind);
    for (const Block& block : program.blocks) live_.push_back(step_liveness(block, form));
  }

  void hold(Bytes bytes) { change(bytes); }

  void action(const Action& action, bool wire_before, bool wire_after) {
    if (action.kind == ActionKind::reduce) return;  // in place
    const bool forward = action.kind == ActionKind::forward;
    const bool weight = action.kind == ActionKind::backward_weight;
    const bool in = forward ? wire_before : wire_after && !weight;
    const bool out = forward ? wire_after : wire_before && !weight;
    if (in) change(program_.boundary);
    const auto& runs = program_.stages[static_cast<std::size_t>(action.stage)].runs;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const Stage::Part& run = runs[forward ? i : runs.size() - 1 - i];
      for (int copy = 0; copy < run.count; ++copy) list(run.block, events_of(action.kind));
    }
    if (out) change(-program_.boundary);
  }

  // A forward beside a backward, layer by layer. `wires`: received and sent by each.
  void pair(const PricedProgram& priced, const Action& f, const Action& b,
            std::array<bool, 4> wires) {
    const auto [f_in, f_out, b_in, b_out] = wires;
    if (b_in) change(program_.boundary);
    if (f_in) change(program_.boundary);
    const StageRuns forward = priced.runs_of(f.stage), backward = priced.runs_of(b.stage);
    for (const PairedRun& run : pair_stages(forward, backward)) {
      for (int copy = 0; copy < run.count; ++copy) {
        if (run.forward != nullptr) list(priced.block_of(*run.forward), &StepLiveness::forward);
        if (run.backward != nullptr) list(priced.block_of(*run.backward), &StepLiveness::backward);
      }
    }
    if (f_out) change(-program_.boundary);
    if (b_out) change(-program_.boundary);
  }

  // The step's end: gradient norms of all the rank's stages, then their updates.
  void end(const std::vector<int>& stages) {
    for (const Events events : {&StepLiveness::norm, &StepLiveness::update}) {
      for (const int stage : stages) {
        for (const Stage::Part& run : program_.stages[static_cast<std::size_t>(stage)].runs) {
          for (int copy = 0; copy < run.count; ++copy) list(run.block, events);
        }
      }
    }
  }

  [[nodiscard]] Bytes peak() const { return peak_; }
  [[nodiscard]] Bytes now() const { return now_; }

 private:
  using Events = std::vector<LiveEvent> StepLiveness::*;

  static Events events_of(ActionKind kind) {
    switch (kind) {
      case ActionKind::forward:
        return &StepLiveness::forward;
      case ActionKind::backward:
        return &StepLiveness::backward;
      case ActionKind::backward_input:
        return &StepLiveness::backward_input;
      case ActionKind::backward_weight:
        return &StepLiveness::backward_weight;
      case ActionKind::reduce:
        break;
    }
    QPLAN_CHECK(false, "a reduction has no list of allocations");
    return &StepLiveness::forward;
  }

  // Every allocation and free of one list of a block.
  void list(BlockId block, Events events) {
    const auto id = static_cast<std::size_t>(block);
    for (const LiveEvent& e : live_[id].*events) {
      const Bytes bytes = program_.blocks[id].slots[static_cast<std::size_t>(e.slot)].bytes();
      change(e.allocate ? bytes : -bytes);
    }
  }

  void change(Bytes bytes) {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }

  const StepProgram& program_;
  std::vector<StepLiveness> live_;
  Bytes now_, peak_;
};

std::vector<Bytes> replay_memory(const PricedProgram& priced, Bytes reserves) {
  const StepProgram& p = priced.program();
  const auto stages = static_cast<int>(p.stages.size());
  std::vector<Bytes> peaks;
  for (int rank = 0; rank < p.schedule.pp; ++rank) {
    HeapReplay heap(p);
    heap.hold(reserves);
    std::vector<const Slot*> shared;
    std::vector<int> own;
    for (int s = 0; s < stages; ++s) {
      if (rank_of_stage(p.schedule.kind, p.schedule.pp, s) != rank) continue;
      own.push_back(s);
      for (const Stage::Part& run : p.stages[static_cast<std::size_t>(s)].runs) {
        const Block& block = p.blocks[static_cast<std::size_t>(run.block)];
        for (int copy = 0; copy < run.count; ++copy) heap.hold(persistent_bytes(block).total());
        for (const Slot& slot : block.slots) {
          if (slot.storage != Storage::shared) continue;
          const bool known = std::any_of(shared.begin(), shared.end(), [&](const Slot* other) {
            return other->name == slot.name && other->shape == slot.shape;
          });
          if (known) continue;
          shared.push_back(&slot);
          heap.hold(slot.bytes());
        }
      }
    }
    const Bytes held = heap.now();
    const std::vector<Action>& actions = p.actions[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action& a = actions[i];
      const bool before = receives(p.schedule, a.stage), after = sends(p.schedule, a.stage);
      if (!a.paired) {
        heap.action(a, before, after);
        continue;
      }
      const Action& b = actions[++i];
      heap.pair(priced, a, b,
                {before, after, sends(p.schedule, b.stage), receives(p.schedule, b.stage)});
    }
    heap.end(own);
    QPLAN_CHECK(heap.now() == held, "a step must free everything it allocates");
    peaks.push_back(heap.peak());
  }
  return peaks;
}

// The program, its context and links, as the cost model sees them.
struct Session {
  StepProgram program;
  CostContext context;
  PipelineLinks links;

  Session(const CostModel& cost, const ParallelPlan& plan)
      : program(build_step_program(cost.model(), plan, cost.recipe(), cost.facts())),
        context{&cost.hardware(), &program.grid, &cost.recipe(), graphs_of(plan)},
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
  for (const NamedReserve& r : framework_reserves(cost.model(), plan, cost.recipe())) {
    reserves += r.bytes;
  }
  return {end2 - end1, replay_memory(priced, reserves), ops};
}

Trace trace_step(const CostModel& cost, const ParallelPlan& plan, TraceGrain grain) {
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

}  // namespace qplan
