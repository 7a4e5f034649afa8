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
  SlotId forward, backward;
  void redirect(Op& op) const {
    for (std::uint8_t i = 0; i < op.reads.count; ++i) {
      if (op.reads.ids[i] == forward) op.reads.ids[i] = backward;
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

void recompute_all(Block& block, Weights weights) {
  OpList repeated;
  for (const Op& op : block.forward) {
    // Parameter gathers are not repeated: backward has its own. What taps a layer or adds to its
    // result stands behind it.
    if (op.stream == Stream::gather_comm || op.stream == Stream::h2d) continue;
    if (op.role == Role::tap_tower || op.role == Role::add_images) continue;
    Op again = op;
    again.recomputed = true;
    weights.redirect(again);
    for (const SlotId id : op.writes) {
      if (block.slots[static_cast<std::size_t>(id)].storage == Storage::wire) {
        write_elsewhere(block, again, id);
      }
    }
    again.after.bits =
        static_cast<std::uint8_t>(again.after.bits & ~only(Stream::gather_comm).bits);
    repeated.push_back(again);
  }
  // Backward's own parameter waits and prefetches come first; the repeated products read them.
  std::size_t place = 0;
  while (place < block.backward.size() &&
         (std::holds_alternative<Join>(block.backward[place].work) ||
          block.backward[place].stream == Stream::gather_comm ||
          block.backward[place].stream == Stream::h2d)) {
    ++place;
  }
  block.backward.insert(block.backward.begin() + static_cast<std::ptrdiff_t>(place),
                        repeated.begin(), repeated.end());
}

}  // namespace

void recompute(Block& block, RecomputeKind kind, EnumSet<RecomputeModule> modules,
               SlotId forward_weights, SlotId backward_weights) {
  const Weights weights{forward_weights, backward_weights};
  switch (kind) {
    case RecomputeKind::none:
      return;
    case RecomputeKind::full:
      recompute_all(block, weights);
      return;
    case RecomputeKind::selective:
      for (const auto& [module, word] : Words<RecomputeModule>::table) {
        if (modules.has(module)) recompute_module(block, module, weights);
      }
      return;
  }
}

}  // namespace qplan
