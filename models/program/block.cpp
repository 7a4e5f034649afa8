#include "models/program/block.h"

#include <cmath>

#include "models/program/liveness.h"

namespace qplan {

Bytes rounded(Bytes bytes) {
  return Bytes(std::ceil(bytes.value() / 256.0) * 256.0);
}

Bytes Slot::bytes() const {
  return rounded(Bytes(std::ceil(static_cast<double>(elements()) * size_of(dtype) * fraction)));
}

std::int64_t factors_of(const PackedParameter& p) {
  return is_vector(p.whole) ? p.rows * p.cols : p.rows + p.cols;
}

namespace {

// torch's AdamW walks lists of all parameters at once, and has the roots of all second moments in a
// list of their own (_multi_tensor_adam in torch/optim/adam.py, exp_avg_sq_sqrt). A fused kernel
// has none. What flattens gradients first has them three times while the last copy is made.
Bytes update_bytes(const Block& block) {
  Bytes sum;
  for (const Op& op : block.update) {
    const auto* step = std::get_if<Update>(&op.work);
    if (step == nullptr) continue;
    const auto params = static_cast<double>(step->params);
    if (step->flattens) {
      sum += rounded(Bytes(params * size_of(step->grad)));
      sum += rounded(Bytes(params * size_of(DType::fp32)));
    }
    if (step->fused || step->optimizer != OptimizerKind::adam) continue;
    sum += rounded(Bytes(params * size_of(step->moments)));
  }
  return sum;
}

}  // namespace

PersistentBytes persistent_bytes(const Block& block) {
  PersistentBytes sum;
  sum.update = update_bytes(block);
  sum.update_peak = memory_use(block, liveness(block, {&block.update}).front()).peak;
  for (const Slot& slot : block.slots) {
    switch (slot.storage) {
      case Storage::weight:
      case Storage::frozen:
        sum.weights += slot.bytes();
        break;
      case Storage::gradient:
        sum.gradients += slot.bytes();
        break;
      case Storage::optimizer:
        sum.optimizer += slot.bytes();
        break;
      case Storage::shared:
      case Storage::local:
      case Storage::wire:
        break;
      case Storage::fresh_gradient:
        sum.fresh += slot.bytes();
        break;
    }
  }
  return sum;
}

}  // namespace qplan
