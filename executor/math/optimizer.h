#pragma once
// Optimizers, and the gradient norm.

#include "executor/math/matrix.h"

namespace qplan::math {

struct AdamWSettings {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0;
};

// One step, the `step`-th (from 1), of torch.optim.AdamW on a shard: decay, moments, bias
// correction. Gradients are multiplied by gradient_scale first (clipping).
void adamw(const AdamWSettings& settings, std::int64_t step, ConstFloats gradient,
           double gradient_scale, Floats parameters, Floats moment1, Floats moment2);

// One step of torch.optim.SGD with a momentum, which begins at 0, on a shard: weight decay is part
// of the gradient.
struct SgdSettings {
  double lr = 1e-3, momentum = 0.9, weight_decay = 0;  // Megatron's --sgd-momentum
};
void sgd(const SgdSettings& settings, ConstFloats gradient, double gradient_scale,
         Floats parameters, Floats momentum);

// The nearest matrix with orthonormal rows or columns, roughly: five quintic Newton-Schulz
// iterations (Keller Jordan's coefficients) bring every singular value that is not tiny near 1.
void orthogonalize(Matrix x);

// One step of Muon on a whole matrix: Nesterov's momentum is orthogonalised and scaled by
// 0.2 sqrt(max(rows, cols)), so that it is as large as AdamW's step (arXiv 2502.16982, 2.2).
struct MuonSettings {
  double lr = 1e-3, momentum = 0.95, weight_decay = 0;
};
void muon(const MuonSettings& settings, ConstMatrix gradient, double gradient_scale,
          Matrix parameters, Matrix momentum);

// One step, the `step`-th (from 1), of transformers' Adafactor with a learning rate of its own
// (relative_step and scale_parameter off, as a Trainer has it) on a whole tensor. Of a matrix it
// keeps `rows` + `cols` means of squares, of a vector (one column) a number an element.
struct AdafactorSettings {
  double lr = 1e-3, weight_decay = 0;
};
void adafactor(const AdafactorSettings& settings, std::int64_t step, ConstMatrix gradient,
               double gradient_scale, Matrix parameters, Floats means, bool is_vector);

double sum_of_squares(ConstFloats x);

// What gradients of this norm are multiplied by so that it does not exceed the limit; 1 without
// one (0). torch.nn.utils.clip_grad_norm_ adds 1e-6 to the norm.
double clip_scale(double norm, double limit);

}  // namespace qplan::math
