#include "models/program/deterministic.h"

#include <set>

namespace qplan {
namespace {

bool writes_what_torch_empty_gave(const Work& work) {
  if (const auto* gemm = std::get_if<Gemm>(&work)) {
    return !gemm->accumulate_fp32 && !gemm->adds;
  }
  if (const auto* gemm = std::get_if<GroupedGemm>(&work)) {
    return !gemm->accumulate_fp32 && !gemm->adds;
  }
  if (std::holds_alternative<Attention>(work)) return true;
  const auto* rowwise = std::get_if<Rowwise>(&work);
  if (rowwise == nullptr) return false;
  const RowwiseKind kind = rowwise->kind;
  return kind == RowwiseKind::rms_norm || kind == RowwiseKind::rms_norm_backward ||
         kind == RowwiseKind::layer_norm || kind == RowwiseKind::layer_norm_backward;
}

// The op whose array it is goes on waiting for whatever it waited for; the fill waits with it.
Op fill_of(const Op& op, SlotId slot, const Slot& array) {
  Op fill = op;
  fill.work = Rowwise{.kind = RowwiseKind::zero_fill,
                      .rows = array.shape[0],
                      .cols = array.shape[1] * array.shape[2],
                      .dtype = array.dtype};
  fill.reads = fill.writes = {};
  fill.writes.add(slot);
  fill.parameter = kNoParameter;
  fill.role = Role::plain;
  return fill;
}

void fill_new_arrays(OpList& list, const std::vector<Slot>& slots) {
  std::set<SlotId> written;
  OpList filled;
  for (const Op& op : list) {
    const bool fresh = op.stream == Stream::compute && writes_what_torch_empty_gave(op.work);
    for (const SlotId slot : op.writes) {
      const Slot& array = slots[static_cast<std::size_t>(slot)];
      const bool its_own = array.storage == Storage::local || array.storage == Storage::wire;
      const bool first = written.insert(slot).second;
      if (fresh && its_own && first) filled.push_back(fill_of(op, slot, array));
    }
    filled.push_back(op);
  }
  list = std::move(filled);
}

}  // namespace

void fill_new_arrays(Block& block) {
  fill_new_arrays(block.forward, block.slots);
  fill_new_arrays(block.backward, block.slots);
}

}  // namespace qplan
