#pragma once
// A part of a decoder layer (layer_context.h): the dense MLP with its norm and residual.

#include "models/program/layer_context.h"

namespace qplan {

class MlpPart {
 public:
  explicit MlpPart(LayerContext& context) : c_(context) {}
  SlotId forward(SlotId x);
  SlotId backward(SlotId dy);

 private:
  LayerContext& c_;
  SlotId x_ = kNoSlot, normed_ = kNoSlot, up_ = kNoSlot, act_ = kNoSlot, mask_ = kNoSlot;
  SlotId gate_ = kNoSlot;  // of its own where products are recomputed one by one
  SlotId eager_norm_ = kNoSlot, eager_silu_ = kNoSlot;  // what unfused kernels keep
};

}  // namespace qplan
