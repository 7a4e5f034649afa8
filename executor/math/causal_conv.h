#pragma once
// A short convolution of each channel over its last tokens, and SiLU: what stands before the gated
// delta rule and before Mamba-2's scan. Of one sequence, which begins with zeros.

#include "executor/math/matrix.h"

namespace qplan::math {

// y[t, c] = silu(bias[c] + sum over j of weight[c, j] x[t - (taps - 1) + j, c]); x and y (tokens,
// channels), weight (channels, taps), bias (channels) or empty.
void causal_conv(ConstMatrix x, ConstMatrix weight, ConstFloats bias, Matrix y);
// dweight and dbias (empty without a bias) are added to.
void causal_conv_backward(ConstMatrix x, ConstMatrix weight, ConstFloats bias, ConstMatrix dy,
                          Matrix dx, Matrix dweight, Floats dbias);

}  // namespace qplan::math
