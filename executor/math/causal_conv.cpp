#include "executor/math/causal_conv.h"

#include <algorithm>
#include <cmath>

namespace qplan::math {
namespace {

// The sum before SiLU.
double sum_at(ConstMatrix x, ConstMatrix weight, ConstFloats bias, std::int64_t t, std::int64_t c) {
  double sum = bias.empty() ? 0 : bias[at(c)];
  for (std::int64_t j = 0; j < weight.cols; ++j) {
    const std::int64_t token = t - (weight.cols - 1) + j;
    if (token >= 0) sum += static_cast<double>(weight.at(c, j)) * x.at(token, c);
  }
  return sum;
}

}  // namespace

void causal_conv(ConstMatrix x, ConstMatrix weight, ConstFloats bias, Matrix y) {
  QPLAN_CHECK(x.cols == weight.rows && x.rows == y.rows && x.cols == y.cols,
              "each channel has its weights");
  for (std::int64_t t = 0; t < x.rows; ++t) {
    for (std::int64_t c = 0; c < x.cols; ++c) {
      const double sum = sum_at(x, weight, bias, t, c);
      y.at(t, c) = static_cast<float>(sum / (1 + std::exp(-sum)));
    }
  }
}

void causal_conv_backward(ConstMatrix x, ConstMatrix weight, ConstFloats bias, ConstMatrix dy,
                          Matrix dx, Matrix dweight, Floats dbias) {
  for (std::int64_t t = 0; t < dx.rows; ++t) std::ranges::fill(dx.row(t), 0.0F);
  for (std::int64_t c = 0; c < x.cols; ++c) {
    double of_bias = 0;
    for (std::int64_t t = 0; t < x.rows; ++t) {
      const double sum = sum_at(x, weight, bias, t, c), s = 1 / (1 + std::exp(-sum));
      const double d = dy.at(t, c) * s * (1 + sum * (1 - s));
      of_bias += d;
      for (std::int64_t j = 0; j < weight.cols; ++j) {
        const std::int64_t token = t - (weight.cols - 1) + j;
        if (token < 0) continue;
        dx.at(token, c) += static_cast<float>(d * weight.at(c, j));
        dweight.at(c, j) += static_cast<float>(d * x.at(token, c));
      }
    }
    if (!dbias.empty()) dbias[at(c)] += static_cast<float>(of_bias);
  }
}

}  // namespace qplan::math
