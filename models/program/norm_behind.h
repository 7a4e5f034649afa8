#pragma once
// The norm of what a part of a layer adds to the residual stream, where a model has one behind its
// attention and MLP (NormPlace).

#include "models/program/layer_context.h"

namespace qplan {

// Whether a part begins with a norm.
inline bool norms_before(const LayerContext& c) {
  return c.model.norm_place != NormPlace::behind;
}

class NormBehind {
 public:
  NormBehind(LayerContext& context, ParameterRole role) : c_(context), role_(role) {}
  // `sum` itself where there is none.
  SlotId forward(SlotId sum);
  // Gradient of what forward gave -> gradient of `sum`.
  SlotId backward(SlotId dy);

 private:
  [[nodiscard]] bool none() const { return c_.model.norm_place == NormPlace::before; }

  LayerContext& c_;
  ParameterRole role_;
  SlotId sum_ = kNoSlot, eager_ = kNoSlot;
};

}  // namespace qplan
