#include "models/program/rank_program.h"

#include <algorithm>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "models/error.h"
#include "models/program/held_places.h"
#include "models/program/liveness.h"

namespace qplan {
namespace {

// The lanes of one rank: its streams, then one for each neighbour, direction and pass. Activations
// and gradients may go the same way (interleaving over two ranks), each in an order of its own.
class Links {
 public:
  Lane lane(int peer, bool outgoing, bool backward) {
    const auto [it, added] = lanes_.try_emplace({peer, outgoing, backward}, next_);
    if (added) ++next_;
    QPLAN_CHECK(next_ <= 64, "a rank has few neighbours");
    return it->second;
  }
  [[nodiscard]] int count() const { return next_; }

 private:
  std::map<std::tuple<int, bool, bool>, Lane> lanes_;
  int next_ = kStreamCount;
};

class Writer {
 public:
  Writer(const StepProgram& program, int rank)
      : p_(program), held_(place_held(program, rank, arena_)), held_bytes_(arena_.live()) {
    out_.rank = rank;
    out_.instances = held_.instances;
    for (const Block& block : p_.blocks) {
      live_.push_back(step_liveness(block, backward_form(p_.schedule.kind)));
    }
  }

  RankProgram write() {
    begin_of_step();
    const auto& actions = p_.actions[static_cast<std::size_t>(out_.rank)];
    // A message travels beside the turn before the one that takes it.
    std::span<const Action> turn = turn_at(actions, 0);
    for (const Action& a : turn) receive(a);
    while (!turn.empty()) {
      for (const Action& a : turn) take(a);
      const auto next =
          turn_at(actions, static_cast<std::size_t>(turn.data() - actions.data()) + turn.size());
      for (const Action& a : next) receive(a);
      turn.size() == 2 ? pair(turn[0], turn[1]) : action(turn[0]);
      turn = next;
    }
    end_of_step();
    QPLAN_CHECK(wires_.empty() && arena_.live() == held_bytes_,
                "a step frees everything it allocates");
    out_.lanes = links_.count();
    out_.live_peak = Bytes(static_cast<double>(std::max(arena_.live_peak(), at_update_)));
    out_.extent = arena_.extent();
    return std::move(out_);
  }

 private:
  using Events = std::vector<LiveEvent>;
  // What crosses from block to block: stage, microbatch, backward; of which flow, and channel.
  using WireKey = std::tuple<int, int, bool, Flow, std::int8_t>;

  [[nodiscard]] const Block& block_of(int instance) const {
    const auto& at = out_.instances[static_cast<std::size_t>(instance)];
    return p_.blocks[static_cast<std::size_t>(at.block)];
  }

  // ---- actions ----

  // What a rank runs at once: one action, or two that are paired; none at the end.
  static std::span<const Action> turn_at(std::span<const Action> actions, std::size_t i) {
    if (i == actions.size()) return {};
    return actions.subspan(i, actions[i].paired ? 2 : 1);
  }

  void action(const Action& a) {
    if (a.kind == ActionKind::reduce) {
      walk(a, nullptr);
      return;
    }
    const bool forward = a.kind == ActionKind::forward;
    const bool weight = a.kind == ActionKind::backward_weight;
    const bool before = receives(p_.schedule, a.stage), after = sends(p_.schedule, a.stage);
    walk(a, events_of(a.kind));
    release_staying();
    if (weight) return;
    forward ? after ? send(a) : pass_on(a) : before ? send(a) : pass_on(a);
  }

  // A forward beside a backward runs layer by layer, the ops of both dealt out in turn.
  void pair(const Action& f, const Action& b) {
    int next_f = 0, next_b = held_.stages[static_cast<std::size_t>(b.stage)].count;
    const Part part_f = part(f), part_b = part(b);
    for (const PairedRun& run : pair_stages(runs_of(f.stage), runs_of(b.stage))) {
      for (int copy = 0; copy < run.count; ++copy) {
        const int instance_f = held_.stages[static_cast<std::size_t>(f.stage)].first + next_f;
        const int instance_b = held_.stages[static_cast<std::size_t>(b.stage)].first + next_b - 1;
        if (run.forward != nullptr) ++next_f;
        if (run.backward != nullptr) --next_b;
        if (run.forward == nullptr) {
          block(b, part_b, instance_b, &StepLiveness::backward);
        } else if (run.backward == nullptr) {
          block(f, part_f, instance_f, &StepLiveness::forward);
        } else {
          Walk forward = begin(f, part_f, instance_f, &StepLiveness::forward);
          Walk backward = begin(b, part_b, instance_b, &StepLiveness::backward);
          side_by_side(forward, backward);
        }
      }
    }
    release_staying();
    sends(p_.schedule, f.stage) ? send(f) : pass_on(f);
    receives(p_.schedule, b.stage) ? send(b) : pass_on(b);
  }

  [[nodiscard]] Part part(const Action& a) const {
    return part_of(a, p_.gather_overlapped, p_.reduce_overlapped);
  }

  [[nodiscard]] const StageRuns& runs_of(int stage) {
    StageRuns& runs = runs_[stage];
    if (runs.empty()) {
      for (const Stage::Part& run : p_.stages[static_cast<std::size_t>(stage)].runs) {
        runs.push_back({p_.shapes[static_cast<std::size_t>(run.block)], run.count});
      }
    }
    return runs;
  }

  static Events StepLiveness::*events_of(ActionKind kind) {
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
    return nullptr;
  }

  // A stage's blocks, in the order its part walks them.
  void walk(const Action& a, Events StepLiveness::*events) {
    const HeldPlaces::Span span = held_.stages[static_cast<std::size_t>(a.stage)];
    const Part p = part(a);
    for (int i = 0; i < span.count; ++i) {
      block(a, p, span.first + (runs_backward(p) ? span.count - 1 - i : i), events);
    }
  }

  static constexpr Action kEdge{ActionKind::forward, -1, 0};

  // Once a step, over all blocks of the rank.
  void all(Part p, Events StepLiveness::*events) {
    for (const int stage : held_.own) {
      const HeldPlaces::Span span = held_.stages[static_cast<std::size_t>(stage)];
      for (int i = 0; i < span.count; ++i) block(kEdge, p, span.first + i, events);
    }
  }

  void begin_of_step() { all(Part::clear, nullptr); }

  void end_of_step() {
    const int last = static_cast<int>(out_.instances.size()) - 1;
    if (!p_.reduce_overlapped) all(Part::reduce, nullptr);
    join(only_lane(kStreamCount) - 1);
    all(Part::norm, &StepLiveness::norm);
    block(kEdge, Part::norm, last, &StepLiveness::norm);
    // Gradients that are made anew go when all blocks have stepped (torch's zero_grad).
    Bytes lists, most;
    for (const auto& instance : out_.instances) {
      const auto bytes = persistent_bytes(p_.blocks[static_cast<std::size_t>(instance.block)]);
      lists += bytes.update;
      most = std::max(most, bytes.update_peak);
    }
    at_update_ = arena_.live() + static_cast<std::int64_t>(std::max(lists, most).value());
    all(Part::update, &StepLiveness::update);
    block(kEdge, Part::update, last, &StepLiveness::update);
  }

  // ---- messages ----

  // The stage on another rank that an action's input comes from.
  [[nodiscard]] std::optional<int> origin(const Action& a) const {
    switch (a.kind) {
      case ActionKind::forward:
        if (!receives(p_.schedule, a.stage)) return std::nullopt;
        return stage_before(p_.schedule, a.stage);
      case ActionKind::backward:
      case ActionKind::backward_input:
        if (!sends(p_.schedule, a.stage)) return std::nullopt;
        return stage_after(p_.schedule, a.stage);
      case ActionKind::backward_weight:
      case ActionKind::reduce:
        break;
    }
    return std::nullopt;
  }

  void receive(const Action& a) {
    const auto from = origin(a);
    if (!from) return;
    Command c = message(CommandKind::receive, a, *from);
    c.lane = links_.lane(c.peer, false, a.kind != ActionKind::forward);
    c.after = only_lane(index(Stream::compute));  // the buffer's last message is taken
    c.buffer = buffer_of(c.lane);
    out_.commands.push_back(c);
  }

  void take(const Action& a) {
    const auto from = origin(a);
    if (!from) return;
    Command c = message(CommandKind::take, a, *from);
    const Lane link = links_.lane(c.peer, false, a.kind != ActionKind::forward);
    c.lane = index(Stream::compute);
    c.after = only_lane(link);
    c.buffer = buffer_of(link);
    c.offset = arena_.allocate(boundary());
    wires_[{a.stage, a.microbatch, a.kind != ActionKind::forward, Flow::activation,
            std::int8_t{0}}] = {c.offset, boundary()};
    out_.commands.push_back(c);
  }

  void send(const Action& a) {
    const bool forward = a.kind == ActionKind::forward;
    const int to = forward ? stage_after(p_.schedule, a.stage) : stage_before(p_.schedule, a.stage);
    const auto it =
        wires_.find({a.stage, a.microbatch, !forward, Flow::activation, std::int8_t{0}});
    QPLAN_CHECK(it != wires_.end(), "a stage that sends has written its boundary");
    Command c = message(CommandKind::send, a, to);
    c.lane = links_.lane(c.peer, true, !forward);
    c.after = only_lane(index(Stream::compute));
    c.buffer = buffer_of(c.lane);
    c.offset = it->second.offset;
    out_.commands.push_back(c);
    join(only_lane(c.lane));  // what was sent may be written over
    arena_.release(it->second.offset, it->second.bytes);
    wires_.erase(it);
  }

  // The next stage is this rank's too (the turn of a V), or there is none.
  void pass_on(const Action& a) {
    const bool forward = a.kind == ActionKind::forward;
    const int to = forward ? stage_after(p_.schedule, a.stage) : stage_before(p_.schedule, a.stage);
    if (to < 0) return;
    auto wire = wires_.extract({a.stage, a.microbatch, !forward, Flow::activation, std::int8_t{0}});
    QPLAN_CHECK(!wire.empty(), "a stage has written its boundary");
    std::get<0>(wire.key()) = to;
    wires_.insert(std::move(wire));
  }

  [[nodiscard]] std::int64_t boundary() const {
    return static_cast<std::int64_t>(p_.boundary.value());
  }

  [[nodiscard]] Command message(CommandKind kind, const Action& a, int other_stage) {
    return {.kind = kind,
            .instance = held_.stages[static_cast<std::size_t>(a.stage)].first,
            .action = a,
            .part = part(a),
            .peer = rank_of_stage(p_.schedule.kind, p_.schedule.pp, other_stage),
            .bytes = boundary()};
  }

  // Each link's own, given out as links are first used.
  [[nodiscard]] std::int64_t buffer_of(Lane link) {
    const auto next = buffers_.size();
    const auto [it, added] = buffers_.try_emplace(link, kNowhere);
    if (!added) return it->second;
    QPLAN_CHECK(next < held_.message_buffers.size(), "every link has a buffer");
    return it->second = held_.message_buffers[next];
  }

  // Compute waits for these lanes.
  void join(LaneSet lanes) {
    static const Op kJoin{.work = Join{}, .stream = Stream::compute};
    out_.commands.push_back({.op = &kJoin,
                             .lane = index(Stream::compute),
                             .after = lanes,
                             .instance = static_cast<int>(out_.instances.size()) - 1,
                             .action = {ActionKind::forward, -1, 0}});
  }

  // ---- one list of one block ----

  const OpList& ops_of(BlockId id, Part part) {
    const auto it = out_.lists.find({id, part});
    if (it != out_.lists.end()) return it->second;
    const Block& block = p_.blocks[static_cast<std::size_t>(id)];
    return out_.lists.emplace(std::pair{id, part}, part_ops(block, part)).first->second;
  }

  struct Place {
    std::int64_t offset = kNowhere, bytes = 0;
  };

  // One list of one block while its ops are written.
  struct Walk {
    Action action;
    Part part;
    int instance;
    const Block& block;
    const OpList& ops;
    const Events& events;
    std::vector<Place>& table;  // of the microbatch's slots
    std::size_t before = 0;     // ops in front of those that the events are of
    std::size_t next = 0, event = 0;
    std::vector<SlotId> leaving{};  // wires that it has written
  };

  [[nodiscard]] BlockId block_id(int instance) const {
    return out_.instances[static_cast<std::size_t>(instance)].block;
  }

  // `gather` comes before forward in one list, `reduce` after backward; neither allocates.
  Walk begin(const Action& a, Part p, int instance, Events StepLiveness::*member) {
    const BlockId id = block_id(instance);
    const Block& b = p_.blocks[static_cast<std::size_t>(id)];
    const OpList& ops = ops_of(id, p);
    static const Events kNone;
    const Events& events = member == nullptr ? kNone : live_[static_cast<std::size_t>(id)].*member;
    std::vector<Place>& table = tables_[key_of(instance, a)];
    table.resize(b.slots.size());
    // What the weight gradients will read of a wire arrives with the input gradients.
    arrive(a, b, p == Part::backward_input ? b.backward : ops, events, table);
    return {.action = a,
            .part = p,
            .instance = instance,
            .block = b,
            .ops = ops,
            .events = events,
            .table = table,
            .before = p == Part::forward_first ? b.gather.size() : 0};
  }

  // Once a step nothing of a microbatch is meant, but what a single one may have left: gradients
  // that are made anew each step.
  static std::pair<int, int> key_of(int instance, const Action& a) {
    return {instance, a.stage < 0 ? 0 : a.microbatch};
  }

  // Allocations and frees up to those just before op `at` of the list; gives what is new.
  std::vector<SlotId> allocate_until(Walk& w, std::size_t at) {
    std::vector<SlotId> fresh;
    for (; w.event < w.events.size(); ++w.event) {
      const LiveEvent& event = w.events[w.event];
      if (static_cast<std::size_t>(event.at) > at) break;
      Place& place = w.table[static_cast<std::size_t>(event.slot)];
      const Slot& slot = w.block.slots[static_cast<std::size_t>(event.slot)];
      if (event.allocate) {
        place = {arena_.allocate(size_in_bytes(slot)), size_in_bytes(slot)};
        fresh.push_back(event.slot);
        if (slot.storage == Storage::wire) w.leaving.push_back(event.slot);
      } else {
        QPLAN_CHECK(place.offset != kNowhere, "a slot is freed once, after it was allocated");
        arena_.release(place.offset, place.bytes);
        place = {};
        std::erase(w.leaving, event.slot);
      }
    }
    return fresh;
  }

  // The list's next op, as it stands in the list or in a pair's.
  void next(Walk& w, const Op& op) {
    std::vector<SlotId> fresh;
    if (w.next >= w.before) fresh = allocate_until(w, w.next - w.before);
    ++w.next;
    command(w.action, w.part, w.instance, op, w.table, fresh);
  }

  void end(Walk& w) {
    allocate_until(w, w.ops.size() + 1);
    for (const SlotId slot : w.leaving) {
      Place& place = w.table[static_cast<std::size_t>(slot)];
      wires_[wire_key(w.action, w.block.slots[static_cast<std::size_t>(slot)])] = place;
      place = {};
    }
    if (w.action.kind != ActionKind::forward) {
      for (const SlotId slot : w.block.until_backward_ends) {
        staying_.push_back(std::exchange(w.table[static_cast<std::size_t>(slot)], Place{}));
      }
    }
    const bool empty = std::all_of(w.table.begin(), w.table.end(),
                                   [](const Place& place) { return place.offset == kNowhere; });
    if (empty) tables_.erase(key_of(w.instance, w.action));
  }

  // What blocks kept until a stage's backward ended.
  void release_staying() {
    for (const Place& place : staying_) arena_.release(place.offset, place.bytes);
    staying_.clear();
  }

  void block(const Action& a, Part p, int instance, Events StepLiveness::*events) {
    Walk w = begin(a, p, instance, events);
    for (const Op& op : w.ops) next(w, op);
    end(w);
  }

  void side_by_side(Walk& forward, Walk& backward) {
    const auto [it, added] =
        out_.pairs.try_emplace(std::array{std::pair{block_id(forward.instance), forward.part},
                                          std::pair{block_id(backward.instance), backward.part}});
    MergedOps& merged = it->second;
    if (added) merged = merge_passes(forward.ops, backward.ops);
    for (std::size_t i = 0; i < merged.ops.size(); ++i) {
      switch (merged.from[i]) {
        case MergedFrom::forward:
          next(forward, merged.ops[i]);
          break;
        case MergedFrom::backward:
          next(backward, merged.ops[i]);
          break;
        case MergedFrom::neither:
          command(forward.action, forward.part, forward.instance, merged.ops[i], forward.table, {});
          break;
      }
    }
    end(forward);
    end(backward);
  }

  static WireKey wire_key(const Action& a, const Slot& wire) {
    return {a.stage, a.microbatch, a.kind != ActionKind::forward, wire.flow, wire.channel};
  }

  // Wires that this list reads without having written them are the neighbour's.
  void arrive(const Action& a, const Block& b, const OpList& ops, const Events& events,
              std::vector<Place>& table) {
    std::vector<bool> own(b.slots.size(), false);
    const Events& later = live_[static_cast<std::size_t>(&b - p_.blocks.data())].backward_weight;
    for (const Events* list : {&events, &later}) {
      for (const LiveEvent& e : *list) {
        if (e.allocate) own[static_cast<std::size_t>(e.slot)] = true;
      }
    }
    for (const Op& op : ops) {
      for (const SlotList* list : {&op.reads, &op.writes}) {
        for (const SlotId id : *list) {
          const auto i = static_cast<std::size_t>(id);
          const Slot& slot = b.slots[i];
          if (slot.storage != Storage::wire || own[i] || table[i].offset != kNowhere) continue;
          const auto it = wires_.find(wire_key(a, slot));
          QPLAN_CHECK(it != wires_.end(), "a wire that is read was written by a neighbour");
          QPLAN_CHECK(it->second.bytes == size_in_bytes(slot), "both ends of a wire are one size");
          table[i] = it->second;
          wires_.erase(it);
        }
      }
    }
  }

  void command(const Action& a, Part p, int instance, const Op& op, const std::vector<Place>& table,
               const std::vector<SlotId>& fresh) {
    Command c{.op = &op,
              .lane = index(op.stream),
              .after = op.after.bits,
              .instance = instance,
              .action = a,
              .part = p};
    const auto operand = [&](SlotId id) {
      const auto i = static_cast<std::size_t>(id);
      const std::int64_t held = out_.instances[static_cast<std::size_t>(instance)].held[i];
      Operand o{.offset = held != kNowhere ? held : table[i].offset, .slot = id};
      QPLAN_CHECK(o.offset != kNowhere, "an op reads and writes slots that are alive");
      o.fresh = std::find(fresh.begin(), fresh.end(), id) != fresh.end();
      return o;
    };
    for (const SlotId id : op.reads) c.reads.list[c.reads.count++] = operand(id);
    for (const SlotId id : op.writes) c.writes.list[c.writes.count++] = operand(id);
    out_.commands.push_back(c);
  }

  const StepProgram& p_;
  ArenaLayout arena_;
  HeldPlaces held_;
  std::int64_t held_bytes_;     // of those
  std::int64_t at_update_ = 0;  // all that is held while the optimizer runs
  RankProgram out_;
  std::vector<StepLiveness> live_;
  std::map<int, StageRuns> runs_;
  Links links_;
  std::map<std::pair<int, int>, std::vector<Place>> tables_;  // instance, microbatch
  std::map<WireKey, Place> wires_;
  std::vector<Place> staying_;
  std::map<Lane, std::int64_t> buffers_;  // of links
};

}  // namespace

RankProgram rank_program(const StepProgram& program, int pipeline_rank) {
  return Writer(program, pipeline_rank).write();
}

}  // namespace qplan
