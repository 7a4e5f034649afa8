#include "models/program/recompute.h"

#include <algorithm>
#include <vector>

namespace qplan {
namespace {

// Megatron's two kinds of recompute module: these drop their output as well ("output-discarding");
// the others are plain checkpoints, whose output its reader keeps.
bool discards_output(RecomputeModule module) {
  switch (module) {
    case RecomputeModule::layernorm:
    case RecomputeModule::moe_act:
    case RecomputeModule::mla_up_proj:
    case RecomputeModule::gdn_norm_out:
      return true;
    case RecomputeModule::core_attn:
    case RecomputeModule::mlp:
    case RecomputeModule::moe:
    case RecomputeModule::shared_experts:
      return false;
  }
  return false;
}

// Slots with an entry true are written or read by ops for which `pick` holds.
template <class Pick>
std::vector<bool> slots_of(const Block& block, const OpList& ops, SlotList Op::*side, Pick pick) {
  std::vector<bool> found(block.slots.size(), false);
  for (const Op& op : ops) {
    if (!pick(op)) continue;
    for (const SlotId id : op.*side) found[static_cast<std::size_t>(id)] = true;
  }
  return found;
}

// Outputs that leave the block (or a checkpoint whose reader keeps them) must not be written twice:
// the repeated op writes a private copy that nobody reads.
void write_elsewhere(Block& block, Op& op, SlotId id) {
  Slot copy = block.slots[static_cast<std::size_t>(id)];
  copy.storage = Storage::local;
  copy.name = "recomputed output";
  block.slots.push_back(copy);
  for (std::uint8_t i = 0; i < op.writes.count; ++i) {
    if (op.writes.ids[i] == id) op.writes.ids[i] = static_cast<SlotId>(block.slots.size() - 1);
  }
}

// Where the repeated ops find the parameters.
struct Weights {
  std::initializer_list<WeightSlots> pairs;
  void redirect(Op& op) const {
    for (std::uint8_t i = 0; i < op.reads.count; ++i) {
      const auto pair = std::ranges::find(pairs, op.reads.ids[i], &WeightSlots::forward);
      if (pair != pairs.end()) op.reads.ids[i] = pair->backward;
    }
  }
};

void recompute_module(Block& block, RecomputeModule module, Weights weights) {
  const auto bit = static_cast<std::uint8_t>(1U << static_cast<unsigned>(module));
  const auto inside = [bit](const Op& op) { return (op.modules & bit) != 0; };
  const auto outside = [bit](const Op& op) { return (op.modules & bit) == 0; };
  OpList repeated;
  std::copy_if(block.forward.begin(), block.forward.end(), std::back_inserter(repeated), inside);
  if (repeated.empty()) return;
  const std::vector<bool> made = slots_of(block, block.forward, &Op::writes, inside);
  const std::vector<bool> used_outside = slots_of(block, block.forward, &Op::reads, outside);

  const auto first_use =
      std::find_if(block.backward.begin(), block.backward.end(), [&](const Op& op) {
        return std::any_of(op.reads.begin(), op.reads.end(), [&](SlotId id) {
          const auto i = static_cast<std::size_t>(id);
          return made[i] && (discards_output(module) || !used_outside[i]);
        });
      });
  if (first_use == block.backward.end()) return;
  const auto place = first_use - block.backward.begin();
  for (Op& op : repeated) {
    op.recomputed = true;
    weights.redirect(op);
    const SlotList writes = op.writes;
    for (const SlotId id : writes) {
      const auto i = static_cast<std::size_t>(id);
      const bool wire = block.slots[i].storage == Storage::wire;
      if (wire || (used_outside[i] && !discards_output(module))) write_elsewhere(block, op, id);
    }
  }
  // The op that follows must still wait for the repeated collectives it may read from.
  if (std::any_of(repeated.begin(), repeated.end(),
                  [](const Op& op) { return op.stream != Stream::compute; })) {
    repeated.push_back({.work = Join{},
                        .stream = Stream::compute,
                        .after = only(Stream::model_comm),
                        .recomputed = true});
  }
  block.backward.insert(block.backward.begin() + place, repeated.begin(), repeated.end());
}

// Parameter gathers are not repeated: backward has its own. What taps a layer or adds to its result
// stands behind it.
bool repeatable(const Op& op) {
  const bool parameters = op.stream == Stream::h2d && op.role != Role::chunk_copy;
  if (op.stream == Stream::gather_comm || parameters) return false;
  return op.role != Role::copy_gathered && op.role != Role::tap_tower &&
         op.role != Role::add_images;
}

StreamSet without_gathers(StreamSet waits) {
  return {static_cast<std::uint8_t>(waits.bits & ~only(Stream::gather_comm).bits)};
}

// Backward's own parameter waits, copies and prefetches come first; the repeated products read
// what they bring.
void insert_behind_gathers(Block& block, const OpList& repeated) {
  std::size_t place = 0;
  while (place < block.backward.size() &&
         (std::holds_alternative<Join>(block.backward[place].work) ||
          block.backward[place].role == Role::copy_gathered ||
          block.backward[place].stream == Stream::gather_comm ||
          block.backward[place].stream == Stream::h2d)) {
    ++place;
  }
  block.backward.insert(block.backward.begin() + static_cast<std::ptrdiff_t>(place),
                        repeated.begin(), repeated.end());
}

void recompute_all(Block& block, Weights weights) {
  OpList repeated;
  for (const Op& op : block.forward) {
    if (!repeatable(op)) continue;
    Op again = op;
    again.recomputed = true;
    weights.redirect(again);
    for (const SlotId id : op.writes) {
      if (block.slots[static_cast<std::size_t>(id)].storage == Storage::wire) {
        write_elsewhere(block, again, id);
      }
    }
    again.after = without_gathers(again.after);
    repeated.push_back(again);
  }
  insert_behind_gathers(block, repeated);
}

// Results that torchtitan's policy keeps (torchtitan/distributed/activation_checkpoint.py): those
// of attention, of reduce-scatters and all-to-alls, and of every second matrix product, counted
// through the layer.
class KeptOperators {
 public:
  bool keeps(const Op& op) {
    if (std::holds_alternative<Attention>(op.work)) return true;
    if (const auto* c = std::get_if<Collective>(&op.work)) {
      return c->kind == CollectiveKind::reduce_scatter || c->kind == CollectiveKind::all_to_all;
    }
    if (!std::holds_alternative<Gemm>(op.work)) return false;
    if (op.piece == 0) ++products_;
    return products_ % 2 == 1;
  }

 private:
  int products_ = 0;
};

// Of the ops, those that write something which backward, or another of them, reads.
std::vector<bool> needed(const Block& block, const std::vector<const Op*>& ops) {
  const auto all = [](const Op&) { return true; };
  std::vector<bool> read = slots_of(block, block.backward, &Op::reads, all);
  std::vector<bool> result(ops.size(), false);
  for (std::size_t i = ops.size(); i-- > 0;) {
    const SlotList& writes = ops[i]->writes;
    result[i] = std::any_of(writes.begin(), writes.end(), [&](SlotId id) {
      const auto slot = static_cast<std::size_t>(id);
      return read[slot] && block.slots[slot].storage != Storage::wire;
    });
    if (!result[i]) continue;
    for (const SlotId id : ops[i]->reads) read[static_cast<std::size_t>(id)] = true;
  }
  return result;
}

// What `keeps` does not hold back runs again, as far as backward needs it: what stands behind the
// last such op is dead, and so is whatever nobody reads in between.
template <class Keeps>
void recompute_needed(Block& block, Weights weights, Keeps keeps) {
  std::vector<const Op*> dropped;
  std::vector<StreamSet> waits;  // of ops that do not run again, for the next one that does
  StreamSet pending{};
  for (const Op& op : block.forward) {
    if (!repeatable(op)) continue;
    if (op.stream == Stream::compute) pending = pending | op.after;
    if (keeps(op)) continue;
    dropped.push_back(&op);
    waits.push_back(pending);
    pending = {};
  }
  const StreamSet last = pending;
  const std::vector<bool> runs = needed(block, dropped);
  OpList repeated;
  StreamSet used{};
  pending = {};
  for (std::size_t i = 0; i < dropped.size(); ++i) {
    pending = pending | waits[i];
    if (!runs[i]) continue;
    Op again = *dropped[i];
    again.recomputed = true;
    again.after = without_gathers(again.after);
    weights.redirect(again);
    used = used | only(again.stream);
    for (const SlotId id : dropped[i]->writes) {
      if (block.slots[static_cast<std::size_t>(id)].storage == Storage::wire) {
        write_elsewhere(block, again, id);
      }
    }
    if (again.stream == Stream::compute) {
      again.after = without_gathers(pending);
      pending = {};
    }
    repeated.push_back(again);
  }
  // Backward reads what those streams bring, where the op that waited for them is not repeated.
  pending = pending | last;
  pending.bits = static_cast<std::uint8_t>(pending.bits & used.bits);
  if (pending != StreamSet{}) {
    repeated.push_back(
        {.work = Join{}, .stream = Stream::compute, .after = pending, .recomputed = true});
  }
  insert_behind_gathers(block, repeated);
}

}  // namespace

void recompute(Block& block, const Recipe& recipe, const BlockShape& shape,
               std::initializer_list<WeightSlots> pairs) {
  const Weights weights{pairs};
  switch (shape.recompute) {
    case RecomputeKind::none:
      return;
    case RecomputeKind::full:
      // Trainers of adapters are transformers', whose checkpoints are reentrant.
      if (recipe.keeps.recomputes_dead_ops || shape.use_reentrant ||
          (recipe.keeps.frozen_inputs_stay && shape.frozen)) {
        recompute_all(block, weights);
      } else {
        recompute_needed(block, weights, [](const Op&) { return false; });
      }
      return;
    case RecomputeKind::selective:
      if (shape.recomputes_operators) {
        KeptOperators policy;
        recompute_needed(block, weights, [&](const Op& op) { return policy.keeps(op); });
      }
      // Norms last: what other modules repeat may read them.
      for (const bool norms : {false, true}) {
        for (const auto& [module, word] : Words<RecomputeModule>::table) {
          if ((module == RecomputeModule::layernorm) != norms) continue;
          if (shape.recompute_modules.has(module)) recompute_module(block, module, weights);
        }
      }
      return;
  }
}

}  // namespace qplan
