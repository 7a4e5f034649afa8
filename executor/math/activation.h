#pragma once
// The MLP's activations. Gated ones read [gate | up], (rows, 2 width), and may scale each row of
// their output by a number (the router's weight of that token copy; empty: 1).

#include "executor/math/matrix.h"

namespace qplan::math {

enum class Activation : std::uint8_t {
  swiglu,          // silu(gate) * up
  swiglu_clamped,  // gpt-oss: gate <= 7, |up| <= 7, gate sigmoid(1.702 gate) (up + 1)
  gelu,            // x Phi(x), exact
  gelu_tanh,       // Hendrycks and Gimpel's tanh form (arXiv 1606.08415)
  relu2            // max(x, 0)^2
};

// Whether its input is [gate | up].
constexpr bool is_gated(Activation a) {
  return a == Activation::swiglu || a == Activation::swiglu_clamped;
}

// y[rows, width] = row_scale * activation(x).
void activate(Activation kind, ConstMatrix x, ConstFloats row_scale, Matrix y);
// dx like x; drow_scale[r] = sum over cols of dy activation(x) where a scale was given.
void activate_backward(Activation kind, ConstMatrix x, ConstFloats row_scale, ConstMatrix dy,
                       Matrix dx, Floats drow_scale);

}  // namespace qplan::math
