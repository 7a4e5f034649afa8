#include "models/program/norm_behind.h"

namespace qplan {

SlotId NormBehind::forward(SlotId sum) {
  if (none()) return sum;
  sum_ = sum;
  const SlotId y = c_.b.slot("normed sum", c_.activation_dtype(), c_.local_tokens, c_.hidden);
  eager_ = c_.eager_norm_copy();
  c_.norm_forward(role_, sum, y, c_.local_tokens, c_.hidden, eager_);
  return y;
}

SlotId NormBehind::backward(SlotId dy) {
  if (none()) return dy;
  const SlotId dsum = c_.b.slot("d normed sum", c_.activation_dtype(), c_.local_tokens, c_.hidden);
  c_.norm_backward(role_, sum_, dy, kNoSlot, dsum, c_.local_tokens, c_.hidden, eager_);
  return dsum;
}

}  // namespace qplan
