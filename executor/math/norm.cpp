#include "executor/math/norm.h"

#include <cmath>
#include <vector>

namespace qplan::math {
namespace {

struct Moments {
  double mean = 0, rstd = 0;
};

// `centred`: LayerNorm subtracts the mean, RMSNorm does not.
Moments moments(ConstFloats x, double epsilon, bool centred) {
  const auto n = static_cast<double>(x.size());
  double sum = 0, squares = 0;
  if (centred) {
    for (const float v : x) sum += v;
  }
  const double mean = sum / n;
  for (const float v : x) squares += (v - mean) * (v - mean);
  return {mean, 1 / std::sqrt(squares / n + epsilon)};
}

void normalise(ConstMatrix x, ConstFloats weight, ConstFloats bias, const NormShape& shape,
               bool centred, Matrix y) {
  const double unit = shape.weight_around_zero ? 1 : 0;
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const Moments m = moments(x.row(r), shape.epsilon, centred);
    for (std::int64_t c = 0; c < x.cols; ++c) {
      const double shift = bias.empty() ? 0 : bias[at(c)];
      const double n = (x.at(r, c) - m.mean) * m.rstd;
      y.at(r, c) = static_cast<float>(n * (weight[at(c)] + unit) + shift);
    }
  }
}

void backward(ConstMatrix x, ConstFloats weight, const NormShape& shape, ConstMatrix dy,
              bool centred, Matrix dx, Floats dweight, Floats dbias) {
  const double unit = shape.weight_around_zero ? 1 : 0;
  const auto width = static_cast<double>(x.cols);
  std::vector<double> weights(at(x.cols)), biases(at(x.cols));
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const Moments m = moments(x.row(r), shape.epsilon, centred);
    double g_sum = 0, gn_sum = 0;
    for (std::int64_t c = 0; c < x.cols; ++c) {
      const double n = (x.at(r, c) - m.mean) * m.rstd;
      const double g = dy.at(r, c) * (weight[at(c)] + unit);
      g_sum += g;
      gn_sum += g * n;
      weights[at(c)] += dy.at(r, c) * n;
      biases[at(c)] += dy.at(r, c);
    }
    const double g_mean = centred ? g_sum / width : 0;
    for (std::int64_t c = 0; c < x.cols; ++c) {
      const double n = (x.at(r, c) - m.mean) * m.rstd;
      const double g = dy.at(r, c) * (weight[at(c)] + unit);
      dx.at(r, c) = static_cast<float>(m.rstd * (g - g_mean - n * gn_sum / width));
    }
  }
  for (std::size_t c = 0; c < dweight.size(); ++c) dweight[c] += static_cast<float>(weights[c]);
  for (std::size_t c = 0; c < dbias.size(); ++c) dbias[c] += static_cast<float>(biases[c]);
}

}  // namespace

void rms_norm(ConstMatrix x, ConstFloats weight, const NormShape& shape, Matrix y) {
  normalise(x, weight, {}, shape, /*centred=*/false, y);
}

void rms_norm_backward(ConstMatrix x, ConstFloats weight, const NormShape& shape, ConstMatrix dy,
                       Matrix dx, Floats dweight) {
  backward(x, weight, shape, dy, /*centred=*/false, dx, dweight, {});
}

void layer_norm(ConstMatrix x, ConstFloats weight, ConstFloats bias, const NormShape& shape,
                Matrix y) {
  normalise(x, weight, bias, shape, /*centred=*/true, y);
}

void layer_norm_backward(ConstMatrix x, ConstFloats weight, const NormShape& shape, ConstMatrix dy,
                         Matrix dx, Floats dweight, Floats dbias) {
  backward(x, weight, shape, dy, /*centred=*/true, dx, dweight, dbias);
}

}  // namespace qplan::math
