// Memory: what the blocks' lists do, folded over stages and the schedule, beside the states that
// live for the whole step.

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "costmodel/fold/attention_choice.h"
#include "costmodel/fold/host_states.h"
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

// Received before, sent (and freed) after.
MemoryUse with_wires(MemoryUse use, Bytes wire, bool in, bool out) {
  if (in) use = then({wire, wire}, use);
  if (out) use = then(use, {-wire, Bytes(0)});
  return use;
}

// Buffers held once per distinct shape: a handful.
void add_distinct(std::vector<const Slot*>& shared, const Slot& slot) {
  const bool known = std::any_of(shared.begin(), shared.end(), [&](const Slot* other) {
    return other == &slot || (other->shape == slot.shape && other->name == slot.name);
  });
  if (!known) shared.push_back(&slot);
}

Bytes bytes_of(const std::vector<const Slot*>& slots) {
  Bytes sum;
  for (const Slot* slot : slots) sum += slot->bytes();
  return sum;
}

}  // namespace

void CostModel::look(MemoryView& result, Seen& seen) const {
  result.view = view(result.key);
  const PlanView& v = result.view;
  const RankGrid grid = rank_grid(*v.plan, facts_);
  const CostContext context = context_of(*v.plan, hardware_, grid, recipe_, facts_);
  const DelayKey in_common{v.base, facts_of(kModelAxes, context), graphs_of(*v.plan), v.backward};
  Seen::Blocks& blocks = seen.blocks[v.schedule.pairs ? 1 : 0][in_common];
  result.runs.blocks = &blocks;
  for (const StageRuns& stage : v.stages.distinct) {
    for (const Run& run : stage) {
      const auto it = std::find_if(blocks.begin(), blocks.end(), [&](const SeenBlock& block) {
        return block.shape == run.shape;
      });
      result.runs.places.push_back(static_cast<int>(it - blocks.begin()));
      if (it == blocks.end()) blocks.push_back({run.shape, nullptr, -1, std::nullopt});
    }
  }
}

void CostModel::fold(MemoryView& result, Seen& seen) const {
  const ParallelPlan& plan = result.key;
  const PlanView& v = result.view;
  const std::size_t stage_count = v.stages.of_stage.size();
  const auto rank_of = [&](std::size_t stage) {
    return static_cast<std::size_t>(rank_of_stage(plan.schedule, plan.pp, static_cast<int>(stage)));
  };
  const auto ranks = static_cast<std::size_t>(plan.pp);
  const auto block_at = [&](int place) -> const SeenBlock& {
    SeenBlock& block = (*result.runs.blocks)[static_cast<std::size_t>(place)];
    if (block.memory == nullptr) {
      const DelayKey key{buffer_shape(block.shape), 0, std::nullopt, v.backward};
      block.memory = &memo_->memory.get(
          key, [&] { return memory_of(build_block(model_, recipe_, key.shape), v.backward); });
      if (holds_states(block.shape.kind)) block.states = seen.number_of(state_shape(block.shape));
    }
    return block;
  };

  // Each distinct stage: its fold, its shared buffers, and how often it holds each kind of states.
  if (seen.distinct.size() < v.stages.distinct.size()) {
    seen.distinct.resize(v.stages.distinct.size());
  }
  const std::span<DistinctStage> distinct(seen.distinct.data(), v.stages.distinct.size());
  auto place = result.runs.places.begin();
  for (std::size_t i = 0; i < distinct.size(); ++i) {
    distinct[i].clear();
    StageMoves& use = distinct[i].moves;
    Bytes staying;
    for (const Run& run : v.stages.distinct[i]) {
      const SeenBlock& seen_block = block_at(*place++);
      const BlockMemory& block = *seen_block.memory;
      distinct[i].blocks.push_back(&block);
      distinct[i].on_host += block.on_host * static_cast<double>(run.count);
      distinct[i].passing_host = std::max(distinct[i].passing_host, block.passing_host);
      staying += block.staying * static_cast<double>(run.count);
      use.forward = then(use.forward, power(block.forward, run.count));
      use.backward = then(power(block.backward, run.count), use.backward);
      if (v.backward != BackwardForm::whole) {
        use.backward_input = then(power(block.backward_input, run.count), use.backward_input);
        use.backward_weight = then(power(block.backward_weight, run.count), use.backward_weight);
      }
      for (const Slot& slot : block.shared) add_distinct(distinct[i].shared, slot);
      const int states = seen_block.states;
      if (states < 0) continue;
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
  result.sending.resize(ranks);
  const Bytes message = message_buffer_bytes(model_, v.base, recipe_);
  for (std::size_t r = 0; message > Bytes(0) && r < ranks; ++r) {
    // Of links out, and of as many in.
    result.sending[r] = message * (2 * outgoing_links(v.schedule, static_cast<int>(r)));
  }
  std::vector<StageMoves>& uses = seen.uses;
  uses.assign(stage_count, {});
  std::vector<int>& stages_of = seen.stages_of;  // [rank][chunk] -> distinct stage
  stages_of.assign(stage_count, 0);
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
    std::vector<const Slot*>& shared = seen.shared;
    shared.clear();
    for (auto stage = own; stage != end; ++stage) {
      const DistinctStage& d = distinct[static_cast<std::size_t>(*stage)];
      const bool again = stage != own && *stage == *(stage - 1);
      for (const Slot* slot : d.shared) {
        if (!again) add_distinct(shared, *slot);
      }
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
  const bool any_on_host =
      std::any_of(distinct.begin(), distinct.end(),
                  [](const DistinctStage& stage) { return stage.on_host != Bytes(0); });
  const auto host_peak = [&](const std::vector<ActionRun>& runs) {
    if (!any_on_host) return Bytes(0);
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
  result.folded = true;
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
  Seen seen;
  MemoryView view;
  view.key = buffer_key(plan, recipe_);
  look(view, seen);
  fold(view, seen);
  return memory(plan, view, seen);
}

// Each stage on its kind of GPU; of hosts the one that is filled most.
MemoryEstimate CostModel::memory_of_kinds(const ParallelPlan& plan, const MemoryView& v,
                                          Seen& seen) const {
  std::map<const CostModel*, MemoryEstimate> by_kind;
  MemoryEstimate whole;
  double fullest = -1;
  for (int r = 0; r < plan.pp; ++r) {
    const CostModel& kind = of_rank(plan, r);
    if (!by_kind.contains(&kind)) {
      const MemoryEstimate own = kind.memory(plan, v, seen);
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

MemoryEstimate CostModel::memory(const ParallelPlan& plan, const MemoryView& v, Seen& seen) const {
  if (!kinds_.empty()) return memory_of_kinds(plan, v, seen);
  const BlockShape base = base_shape(model_, plan_on(hardware_, plan, recipe_), recipe_,
                                     facts_.moe_imbalance, facts_.turns_fp8);
  Bytes reserves;
  for (const NamedReserve& r : framework_reserves(model_, plan, recipe_, hardware_))
    reserves += r.bytes;
  const Bytes outside = outside_bytes(model_, plan, recipe_, hardware_);

  // Small and fixed: a model has a handful of kinds.
  std::vector<const Seen::Held*> held;
  const auto base_number = static_cast<std::uint64_t>(seen.number_of(state_shape(base)));
  double offloaded = 0;
  for (std::size_t k = 0; k < v.kinds.size(); ++k) {
    const auto kind = static_cast<std::uint64_t>(v.kinds[k]);
    const auto [it, added] = seen.held.try_emplace((base_number << 32U) + kind);
    if (added) {
      const BlockShape shape = with_states_of(seen.shapes[kind], base);
      it->second.bytes = memo_->states.get(
          shape, [&] { return persistent_bytes(build_states(model_, recipe_, shape)); });
      it->second.shared = shares_embedding(model_, shape);
      it->second.parameters = parameters(shape);
    }
    held.push_back(&it->second);
    if (plan.offload.optimizer > 0 || plan.offload.params) {
      if (held.back()->shared) continue;
      const RankParameters& own = held.back()->parameters;
      for (std::size_t r = 0; r < v.like.size(); ++r) {
        offloaded += v.count(r, k) * (static_cast<double>(own.dense) / base.dense_shard +
                                      static_cast<double>(own.expert) / base.expert_shard);
      }
    }
  }
  // What a rank holds for the whole step.
  struct HeldByRank {
    StageMemory memory;
    Bytes fresh, lists, update_peak;
  };
  const auto held_by = [&](std::size_t r) {
    HeldByRank sum;
    for (std::size_t k = 0; k < held.size(); ++k) {
      const PersistentBytes& bytes = held[k]->bytes;
      const double n = v.count(r, k);
      sum.fresh += bytes.fresh * n;
      sum.lists += bytes.update * n;
      if (n > 0) sum.update_peak = std::max(sum.update_peak, bytes.update_peak);
      sum.memory.weights += bytes.weights * n;
      sum.memory.gradients += bytes.gradients * n;
      sum.memory.optimizer += bytes.optimizer * n;
    }
    return sum;
  };
  HeldByRank of_rank;
  MemoryEstimate estimate;
  estimate.capacity = capacity_;
  estimate.stages.reserve(v.like.size());
  for (std::size_t r = 0; r < v.like.size(); ++r) {
    if (static_cast<std::size_t>(v.like[r]) == r) of_rank = held_by(r);
    auto [memory, fresh, lists, update_peak] = of_rank;
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
  // Activations are beside the states; a node's ranks are taken to be of the stage that has most.
  const HostStates host =
      host_states(plan, offloaded / plan.pp, host_step(recipe_, base, 1), hardware_);
  estimate.host_per_node = host.held + v.activations_on_host * host.ranks;
  estimate.host_room = host.room;
  return estimate;
}

bool CostModel::fits(const MemoryEstimate& memory) const {
  return memory.worst_stage().device <= memory.capacity && memory.host_per_node <= memory.host_room;
}

PlanSifter::PlanSifter(const CostModel& cost)
    : cost_(cost),
      seen_(std::make_unique<CostModel::Seen>()),
      last_(std::make_unique<CostModel::MemoryView>()) {
  last_->key.tp = 0;  // no plan's key
}

PlanSifter::~PlanSifter() = default;

bool PlanSifter::look_at(const ParallelPlan& plan) {
  ParallelPlan key = buffer_key(plan, cost_.recipe());
  if (key == last_->key) return false;
  last_->clear();
  last_->key = std::move(key);
  cost_.look(*last_, *seen_);
  return true;
}

PlanSifter::Check PlanSifter::check(const ParallelPlan& plan) {
  look_at(plan);
  if (!last_->folded) cost_.fold(*last_, *seen_);
  const MemoryEstimate estimate = cost_.memory(plan, *last_, *seen_);
  return {estimate.worst_stage().device, cost_.fits(estimate)};
}

StepBound PlanSifter::own_work_bound(const ParallelPlan& plan) {
  look_at(plan);
  if (!last_->bound) last_->bound = cost_.own_work_bound(last_->view, &last_->runs);
  return *last_->bound;
}

}  // namespace qplan
