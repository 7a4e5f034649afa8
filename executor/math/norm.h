#pragma once
// Normalisation of rows.

#include "executor/math/matrix.h"

namespace qplan::math {

struct NormShape {
  double epsilon = 1e-6;
  bool weight_around_zero = false;  // scale by 1 + weight (Nemotron's LayerNorm1p)
};

// y = x / sqrt(mean(x^2) + eps) * weight, row by row; y may be x.
void rms_norm(ConstMatrix x, ConstFloats weight, const NormShape& shape, Matrix y);
// With r = 1/sqrt(mean(x^2) + eps), n = x r, g = dy * weight:
// dx = r (g - n mean(g n)), dweight += sum over rows of dy n.
void rms_norm_backward(ConstMatrix x, ConstFloats weight, const NormShape& shape, ConstMatrix dy,
                       Matrix dx, Floats dweight);

// y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, var over cols (biased); y may be x.
void layer_norm(ConstMatrix x, ConstFloats weight, ConstFloats bias, const NormShape& shape,
                Matrix y);
// dx = r (g - mean(g) - n mean(g n)), dweight += sum of dy n, dbias += sum of dy.
void layer_norm_backward(ConstMatrix x, ConstFloats weight, const NormShape& shape, ConstMatrix dy,
                         Matrix dx, Floats dweight, Floats dbias);

}  // namespace qplan::math
