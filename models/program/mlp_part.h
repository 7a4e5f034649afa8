#pragma once
// A part of a decoder layer (layer_context.h): the dense MLP with its norm and residual.

#include "models/program/fpdt_part.h"
#include "models/program/layer_context.h"
#include "models/program/norm_behind.h"

namespace qplan {

class MlpPart {
 public:
  explicit MlpPart(LayerContext& context)
      : c_(context), fpdt_(context), behind_(context, ParameterRole::mlp_out_norm) {}
  // `normed`: what it reads where it stands beside attention (ModelSpec::parallel_mlp).
  SlotId forward(SlotId x, SlotId normed = kNoSlot);
  SlotId backward(SlotId dy);
  // The gradient of `normed`, which backward leaves to attention's norm.
  [[nodiscard]] SlotId normed_gradient() const { return dnormed_; }

 private:
  SlotId multiply();                      // `normed_` -> the down projection's result
  SlotId multiply_backward(SlotId dout);  // its gradient -> that of `normed_`

  LayerContext& c_;
  FpdtPart fpdt_;
  NormBehind behind_;
  bool beside_ = false;
  SlotId dnormed_ = kNoSlot;
  SlotId x_ = kNoSlot, normed_ = kNoSlot, up_ = kNoSlot, act_ = kNoSlot, mask_ = kNoSlot;
  SlotId gate_ = kNoSlot;  // of its own where products are recomputed one by one
  SlotId eager_norm_ = kNoSlot, eager_silu_ = kNoSlot;  // what unfused kernels keep
};

}  // namespace qplan
