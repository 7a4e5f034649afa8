// Memory: what the blocks' lists do, folded over stages and the schedule, beside the states that
// live for the whole step.

#include <algorithm>
#include <map>

#include "costmodel/fold/plan_view.h"
#include "models/plan/words.h"
#include "models/program/merge.h"

namespace qplan {
namespace {

bool holds_states(BlockKind kind) {
  return kind != BlockKind::stage_entry && kind != BlockKind::stage_exit;
}

// The plan without the words that only move states around: plans with equal keys hold the same
// buffers in forward and backward, and do the same work of their own there.
ParallelPlan buffer_key(ParallelPlan plan, const Recipe& recipe) {
  static const ParallelPlan kDefault;
  // Gradients that backward makes anew are a shard, and lie on the host where the whole optimizer
  // does; whole parameters and gradients are as large whoever shares them.
  const bool fresh = makes_fresh_gradients(plan, recipe);
  const bool host = fresh && plan.offload.optimizer >= 1;
  for_each_word([&](const auto& word) {
    if (word.touches == kStates) plan.*word.member = kDefault.*word.member;
  });
  plan.offload.optimizer = host ? 1 : 0;
  plan.offload.nvme = false;
  if (plan.zero < 2) plan.zero = 0;
  if (plan.zero < 2 || (plan.fsdp_shard > 1 && !fresh)) plan.fsdp_shard = 0;
  if (plan.zero < 2) plan.overlap.remove(OverlapKind::grad).remove(OverlapKind::param);
  return plan;
}

// A stage's pieces as the actions use them, the boundary's buffers included.
struct StageMoves {
  MemoryUse forward, backward, backward_input, backward_weight;
  MemoryUse reduce;  // in place

  [[nodiscard]] const MemoryUse& of(ActionKind kind) const {
    switch (kind) {
      case ActionKind::forward:
        return forward;
      case ActionKind::backward:
        return backward;
      case ActionKind::backward_input:
        return backward_input;
      case ActionKind::backward_weight:
        return backward_weight;
      case ActionKind::reduce:
        return reduce;
    }
    return forward;
  }
};

struct DistinctStage {
  StageMoves moves;
  std::vector<const BlockMemory*> blocks;  // of its runs, in order
  std::vector<const Slot*> shared;
  std::vector<int> holds;  // how often it holds each kind of states
  Bytes on_host;           // of one microbatch, from forward to backward
  Bytes passing_host;      // ... and of the one block that runs
};

// Received before, sent (and freed) after.
MemoryUse with_wires(MemoryUse use, Bytes wire, bool in, bool out) {
  if (in) use = then({wire, wire}, use);
  if (out) use = then(use, {-wire, Bytes(0)});
  return use;
}

// Buffers held once per distinct shape: a handful.
void add_distinct(std::vector<const Slot*>& shared, const Slot& slot) {
  const bool known = std::any_of(shared.begin(), shared.end(), [&](const Slot* other) {
    return other == &slot || (other->name == slot.name && other->shape == slot.shape);
  });
  if (!known) shared.push_back(&slot);
}

Bytes bytes_of(const std::vector<const Slot*>& slots) {
  Bytes sum;
  for (const Slot* slot : slots) sum += slot->bytes();
  return sum;
}

}  // namespace

// What the compute words of a plan decide, per pipeline rank.
struct CostModel::MemoryView {
  ParallelPlan key;
  PlanView view;  // of `key`
  // Of each rank, what its actions hold at its peak: gradients that they made, gathered parameters,
  // and all the rest.
  std::vector<MemoryParts> parts;
  std::vector<Bytes> activations;
  std::vector<int> like;          // rank -> the first rank that holds the same stages
  std::vector<Bytes> buffers;     // of each rank that is the first of its kind
  std::vector<Bytes> sending;     // of each rank, for what it sends
  Bytes activations_on_host;      // of the rank that has most there at once
  std::vector<BlockShape> kinds;  // distinct holders of states
  std::vector<int> counts;        // [rank][kind], of the first ranks
  std::optional<StepBound> bound;
  [[nodiscard]] int count(std::size_t rank, std::size_t kind) const {
    return counts[static_cast<std::size_t>(like[rank]) * kinds.size() + kind];
  }
};

CostModel::MemoryView CostModel::memory_view(const ParallelPlan& plan) const {
  MemoryView result;
  result.key = buffer_key(plan, recipe_);
  result.view = view(result.key);
  const PlanView& v = result.view;
  const std::size_t stage_count = v.stages.of_stage.size();
  const auto rank_of = [&](std::size_t stage) {
    return static_cast<std::size_t>(rank_of_stage(plan.schedule, plan.pp, static_cast<int>(stage)));
  };
  const auto ranks = static_cast<std::size_t>(plan.pp);

  // Each distinct stage: its fold, its shared buffers, and how often it holds each kind of states.
  std::vector<DistinctStage> distinct(v.stages.distinct.size());
  for (std::size_t i = 0; i < distinct.size(); ++i) {
    StageMoves& use = distinct[i].moves;
    Bytes staying;
    for (const Run& run : v.stages.distinct[i]) {
      const DelayKey key{buffer_shape(run.shape), 0, std::nullopt, v.backward};
      const BlockMemory& block = memo_->memory.get(
          key, [&] { return memory_of(build_block(model_, recipe_, key.shape), v.backward); });
      distinct[i].blocks.push_back(&block);
      distinct[i].on_host += block.on_host * static_cast<double>(run.count);
      distinct[i].passing_host = std::max(distinct[i].passing_host, block.passing_host);
      staying += block.staying * static_cast<double>(run.count);
      use.forward = then(use.forward, power(block.forward, run.count));
      use.backward = then(power(block.backward, run.count), use.backward);
      use.backward_input = then(power(block.backward_input, run.count), use.backward_input);
      use.backward_weight = then(power(block.backward_weight, run.count), use.backward_weight);
      for (const Slot& slot : block.shared) add_distinct(distinct[i].shared, slot);
      if (!holds_states(run.shape.kind)) continue;
      const BlockShape states = state_shape(run.shape);
      const auto it = std::find(result.kinds.begin(), result.kinds.end(), states);
      const auto kind = static_cast<std::size_t>(it - result.kinds.begin());
      if (it == result.kinds.end()) result.kinds.push_back(states);
      auto& holds = distinct[i].holds;
      if (holds.size() <= kind) holds.resize(kind + 1, 0);
      holds[kind] += run.count;
    }
    use.backward = then(use.backward, {-staying, Bytes(0)});
  }

  const Bytes wire = boundary_bytes(model_, v.base);
  for (int r = 0; r < plan.pp; ++r) {
    // Of links out, and of as many in.
    result.sending.push_back(message_buffer_bytes(model_, v.base, recipe_) *
                             (2 * outgoing_links(v.schedule, r)));
  }
  std::vector<StageMoves> uses(stage_count);
  std::vector<int> stages_of(stage_count);  // [rank][chunk] -> distinct stage
  const std::size_t chunks = stage_count / ranks;
  std::vector<std::size_t> filled(ranks, 0);
  for (std::size_t i = 0; i < stage_count; ++i) {
    const auto d = static_cast<std::size_t>(v.stages.of_stage[i]);
    const bool before = receives(v.schedule, static_cast<int>(i));
    const bool after = sends(v.schedule, static_cast<int>(i));
    const StageMoves& moves = distinct[d].moves;
    uses[i].forward = with_wires(moves.forward, wire, before, after);
    uses[i].backward = with_wires(moves.backward, wire, after, before);
    uses[i].backward_input = with_wires(moves.backward_input, wire, after, before);
    uses[i].backward_weight = moves.backward_weight;
    stages_of[rank_of(i) * chunks + filled[rank_of(i)]++] = static_cast<int>(d);
  }
  result.counts.assign(ranks * result.kinds.size(), 0);
  result.buffers.resize(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto own = stages_of.begin() + static_cast<std::ptrdiff_t>(r * chunks);
    const auto end = own + static_cast<std::ptrdiff_t>(chunks);
    if (r > 0 && std::equal(own, end, own - static_cast<std::ptrdiff_t>(chunks))) {
      result.like.push_back(result.like.back());
      continue;
    }
    result.like.push_back(static_cast<int>(r));
    std::vector<const Slot*> shared;
    for (auto stage = own; stage != end; ++stage) {
      const DistinctStage& d = distinct[static_cast<std::size_t>(*stage)];
      for (const Slot* slot : d.shared) add_distinct(shared, *slot);
      for (std::size_t k = 0; k < d.holds.size(); ++k) {
        result.counts[r * result.kinds.size() + k] += d.holds[k];
      }
    }
    result.buffers[r] = bytes_of(shared);
  }

  ScheduleShape shape = v.schedule;
  shape.whole_reductions = false;  // they take no memory, wherever they are
  shape.microbatches = microbatches_for_memory(shape);
  const RunLengths& lists = memo_->schedules.get(shape, [&] {
    RunLengths all;
    for (const auto& actions : build_schedule(shape)) all.push_back(run_length(actions));
    return all;
  });
  // A forward beside a backward: layer by layer, the ops of both in turn.
  const auto pair_memory = [&](const BlockShape& forward, const BlockShape& backward) {
    const PairKey key{{buffer_shape(forward), 0, std::nullopt, v.backward},
                      {buffer_shape(backward), 0, std::nullopt, v.backward}};
    return memo_->pair_memory.get(key, [&] {
      return merged_memory_use(build_block(model_, recipe_, key.forward.shape),
                               build_block(model_, recipe_, key.backward.shape), v.backward);
    });
  };
  const auto pair_use = [&](int f, int b) {
    const auto i = static_cast<std::size_t>(f), j = static_cast<std::size_t>(b);
    const auto df = static_cast<std::size_t>(v.stages.of_stage[i]);
    const auto db = static_cast<std::size_t>(v.stages.of_stage[j]);
    const StageRuns &forward = v.stages.distinct[df], &backward = v.stages.distinct[db];
    MemoryUse total;
    for (const PairedRun& run : pair_stages(forward, backward)) {
      const auto block_of = [](const StageRuns& runs, const DistinctStage& d,
                               const BlockShape* wanted) -> const BlockMemory& {
        std::size_t k = 0;
        while (&runs[k].shape != wanted) ++k;
        return *d.blocks[k];
      };
      const MemoryUse layer =
          run.backward == nullptr  ? block_of(forward, distinct[df], run.forward).forward
          : run.forward == nullptr ? block_of(backward, distinct[db], run.backward).backward
                                   : pair_memory(*run.forward, *run.backward);
      total = then(total, power(layer, run.count));
    }
    total = with_wires(total, wire, receives(v.schedule, f), sends(v.schedule, f));
    return with_wires(total, wire, sends(v.schedule, b), receives(v.schedule, b));
  };
  // What a stage's forward leaves on the host its backward takes back.
  const auto host_peak = [&](const std::vector<ActionRun>& runs) {
    const auto of = [&](int stage) {
      const auto d = static_cast<std::size_t>(v.stages.of_stage[static_cast<std::size_t>(stage)]);
      return distinct[d].on_host;
    };
    MemoryUse held;
    for (const ActionRun& run : runs) {
      MemoryUse pattern;
      for (const Action& a : run.pattern) {
        const bool makes = a.kind == ActionKind::forward;
        const bool takes = a.kind == ActionKind::backward || a.kind == ActionKind::backward_input;
        if (makes) pattern = then(pattern, {of(a.stage), of(a.stage)});
        if (takes) pattern = then(pattern, {-of(a.stage), Bytes(0)});
        if (a.paired) pattern = then(pattern, {-of(a.microbatch), Bytes(0)});
      }
      held = then(held, power(pattern, run.count));
    }
    return held.peak;
  };
  Bytes passing_host;
  for (const DistinctStage& stage : distinct) {
    passing_host = std::max(passing_host, stage.passing_host);
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    MemoryUse step;
    for (const ActionRun& run : lists[r]) {
      MemoryUse pattern;
      for (const Action& a : run.pattern) {
        pattern = then(pattern, a.paired ? pair_use(a.stage, a.microbatch)
                                         : uses[static_cast<std::size_t>(a.stage)].of(a.kind));
      }
      step = then(step, power(pattern, run.count));
    }
    // The step's end frees what fresh gradients it finds, and no peak lies there.
    result.activations_on_host =
        std::max(result.activations_on_host, host_peak(lists[r]) + passing_host);
    result.parts.push_back(step.at_peak);
    result.activations.push_back(step.peak - step.at_peak.gradients - step.at_peak.gathered);
  }
  return result;
}

namespace {

// What a caching allocator cannot give back at most: 2-10 GB of 80 without expandable segments
// (docs/reference/physics.md 5.5).
constexpr double kFragmentation = 0.05;

// A caching allocator keeps freed blocks while there is room for them, and frees them before it
// fails; only fragments stay.
Bytes reserved_bytes(const StageMemory& memory, const Recipe& recipe, Bytes room) {
  const Bytes peak = memory.peak;
  // States are allocated once and leave no fragments.
  const Bytes moving = memory.activations + memory.buffers;
  const Bytes least = peak + moving * std::min(kFragmentation, recipe.memory.allocator_overhead);
  const Bytes cached =
      peak * (1 + recipe.memory.allocator_overhead) + recipe.memory.allocator_slack;
  return std::max(least, std::min(cached, room));
}

}  // namespace

MemoryEstimate CostModel::memory(const ParallelPlan& plan) const {
  return memory(plan, memory_view(plan));
}

// Each stage on its kind of GPU; of hosts the one that is filled most.
MemoryEstimate CostModel::memory_of_kinds(const ParallelPlan& plan, const MemoryView& v) const {
  std::map<const CostModel*, MemoryEstimate> by_kind;
  MemoryEstimate whole;
  double fullest = -1;
  for (int r = 0; r < plan.pp; ++r) {
    const CostModel& kind = of_rank(plan, r);
    if (!by_kind.contains(&kind)) {
      const MemoryEstimate own = kind.memory(plan, v);
      if (by_kind.empty() ||
          own.host_per_node / own.host_room > whole.host_per_node / whole.host_room) {
        whole.host_per_node = own.host_per_node;
        whole.host_room = own.host_room;
      }
      by_kind.emplace(&kind, own);
    }
    whole.stages.push_back(by_kind.at(&kind).stages[static_cast<std::size_t>(r)]);
    const double full = whole.stages.back().device / kind.capacity();
    if (full <= fullest) continue;
    fullest = full;
    whole.worst = r;
    whole.capacity = kind.capacity();
  }
  return whole;
}

MemoryEstimate CostModel::memory(const ParallelPlan& plan, const MemoryView& v) const {
  if (!kinds_.empty()) return memory_of_kinds(plan, v);
  const BlockShape base = base_shape(model_, plan_on(hardware_, plan, recipe_), recipe_,
                                     facts_.moe_imbalance, facts_.turns_fp8);
  Bytes reserves;
  for (const NamedReserve& r : framework_reserves(model_, plan, recipe_, hardware_))
    reserves += r.bytes;
  const Bytes outside = outside_bytes(model_, plan, recipe_, hardware_);

  // Small and fixed: a model has a handful of kinds.
  std::vector<PersistentBytes> persistent;
  double offloaded = 0;
  for (std::size_t k = 0; k < v.kinds.size(); ++k) {
    const BlockShape shape = with_states_of(v.kinds[k], base);
    persistent.push_back(memo_->states.get(
        shape, [&] { return persistent_bytes(build_states(model_, recipe_, shape)); }));
    if (plan.offload.optimizer > 0 || plan.offload.params) {
      if (shares_embedding(model_, shape)) continue;
      const RankParameters own = parameters(shape);
      for (std::size_t r = 0; r < v.like.size(); ++r) {
        offloaded += v.count(r, k) * (static_cast<double>(own.dense) / base.dense_shard +
                                      static_cast<double>(own.expert) / base.expert_shard);
      }
    }
  }
  MemoryEstimate estimate;
  estimate.capacity = capacity_;
  estimate.stages.reserve(v.like.size());
  for (std::size_t r = 0; r < v.like.size(); ++r) {
    StageMemory memory;
    Bytes fresh, lists, update_peak;
    for (std::size_t k = 0; k < persistent.size(); ++k) {
      const double n = v.count(r, k);
      fresh += persistent[k].fresh * n;
      lists += persistent[k].update * n;
      if (n > 0) update_peak = std::max(update_peak, persistent[k].update_peak);
      memory.weights += persistent[k].weights * n;
      memory.gradients += persistent[k].gradients * n;
      memory.optimizer += persistent[k].optimizer * n;
    }
    // Blocks step one after the other; lists of all parameters stand for all of them.
    const Bytes update = std::max(lists, update_peak);
    const Bytes shared = v.buffers[static_cast<std::size_t>(v.like[r])] + v.sending[r] + reserves;
    const Bytes passes = v.parts[r].gradients + v.activations[r] + v.parts[r].gathered;
    if (update > Bytes(0) && fresh + update > passes) {
      // The peak lies in the update, when activations are gone.
      memory.gradients += fresh;
      memory.buffers = shared + update;
    } else {
      memory.gradients += v.parts[r].gradients;
      memory.activations = v.activations[r];
      memory.buffers = shared + v.parts[r].gathered;
    }
    memory.peak =
        memory.weights + memory.gradients + memory.optimizer + memory.buffers + memory.activations;
    memory.reserved = reserved_bytes(memory, recipe_, capacity_ - outside);
    memory.device = memory.reserved + outside;
    estimate.stages.push_back(memory);
    if (memory.device > estimate.stages[static_cast<std::size_t>(estimate.worst)].device) {
      estimate.worst = static_cast<int>(r);
    }
  }
  // Offloaded optimizer: fp32 master, m, v and a gradient copy, 16 bytes a parameter
  // (docs/reference/frameworks.md 2.2); offloaded parameters 2 more. With NVMe only staging buffers
  // stay in memory (a tenth, assumed). Activations are beside them; a node's ranks are taken to be
  // of the stage that has most.
  const double bytes = 16 * plan.offload.optimizer + (plan.offload.params ? 2 : 0);
  const double staged = plan.offload.nvme ? 0.1 : 1.0;
  const auto ranks_per_node =
      static_cast<double>(std::min<std::int64_t>(plan.world(), hardware_.link.gpus_per_node));
  estimate.host_per_node = Bytes(offloaded / plan.pp * bytes * staged * ranks_per_node) +
                           v.activations_on_host * ranks_per_node;
  // Each GPU of a node brings its share of the host, memory as well as cores (host_adam_price()).
  estimate.host_room = hardware_.host.memory * (ranks_per_node / hardware_.link.gpus_per_node);
  return estimate;
}

bool CostModel::fits(const MemoryEstimate& memory) const {
  return memory.worst_stage().device <= memory.capacity && memory.host_per_node <= memory.host_room;
}

PlanSifter::PlanSifter(const CostModel& cost)
    : cost_(cost), last_(std::make_unique<CostModel::MemoryView>()) {
  last_->key.tp = 0;  // no plan's key
}

PlanSifter::~PlanSifter() = default;

void PlanSifter::look_at(const ParallelPlan& plan) {
  if (buffer_key(plan, cost_.recipe()) == last_->key) return;
  *last_ = cost_.memory_view(plan);
  last_->view.plan = &last_->key;
}

PlanSifter::Check PlanSifter::check(const ParallelPlan& plan) {
  look_at(plan);
  const MemoryEstimate estimate = cost_.memory(plan, *last_);
  return {estimate.worst_stage().device, cost_.fits(estimate)};
}

StepBound PlanSifter::own_work_bound(const ParallelPlan& plan) {
  look_at(plan);
  if (!last_->bound) last_->bound = cost_.own_work_bound(last_->view);
  return *last_->bound;
}

}  // namespace qplan
