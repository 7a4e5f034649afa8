#include "models/program/block.h"

#include <cmath>

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

PersistentBytes persistent_bytes(const Block& block) {
  PersistentBytes sum;
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
      case Storage::fresh_gradient:
        break;
    }
  }
  return sum;
}

}  // namespace qplan
