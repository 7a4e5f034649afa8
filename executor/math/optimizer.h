#pragma once
// AdamW (arXiv 1711.05101) and the gradient norm.

#include "executor/math/matrix.h"

namespace qplan::math {

struct AdamWSettings {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0;
};

// One step, the `step`-th (from 1), of torch.optim.AdamW on a shard: decay, moments, bias
// correction. Gradients are multiplied by gradient_scale first (clipping).
void adamw(const AdamWSettings& settings, std::int64_t step, ConstFloats gradient,
           double gradient_scale, Floats parameters, Floats moment1, Floats moment2);

double sum_of_squares(ConstFloats x);

// What gradients of this norm are multiplied by so that it does not exceed the limit; 1 without
// one (0). torch.nn.utils.clip_grad_norm_ adds 1e-6 to the norm.
double clip_scale(double norm, double limit);

}  // namespace qplan::math
