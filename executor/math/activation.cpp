#include "executor/math/activation.h"

#include <algorithm>
#include <cmath>

#include "executor/math/sigmoid.h"

namespace qplan::math {
namespace {

constexpr double kLimit = 7, kAlpha = 1.702;             // GptOssExperts
constexpr double kSqrt2OverPi = 0.79788456080286536;     // sqrt(2/pi)
constexpr double kInverseSqrt2Pi = 0.39894228040143268;  // 1/sqrt(2 pi)
constexpr double kCubic = 0.044715;                      // of GELU's tanh form

// f(gate, up) and its derivatives; plain activations take their input as `gate`.
struct Value {
  double f = 0, by_gate = 0, by_up = 0;
};

Value swiglu(double gate, double up) {
  const double s = sigmoid(gate);
  return {gate * s * up, s * (1 + gate * (1 - s)) * up, gate * s};
}

Value swiglu_clamped(double gate, double up) {
  const double g = std::min(gate, kLimit), u = std::clamp(up, -kLimit, kLimit);
  const double s = sigmoid(kAlpha * g);
  // torch.clamp passes the gradient on at the limit itself.
  const double through_gate = gate <= kLimit ? 1 : 0, through_up = std::abs(up) <= kLimit ? 1 : 0;
  return {g * s * (u + 1), through_gate * s * (1 + kAlpha * g * (1 - s)) * (u + 1),
          through_up * g * s};
}

Value gelu(double x) {
  const double phi = 0.5 * std::erfc(-x / std::sqrt(2.0));
  return {x * phi, phi + x * kInverseSqrt2Pi * std::exp(-x * x / 2), 0};
}

Value gelu_tanh(double x) {
  const double t = std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x));
  const double inner = kSqrt2OverPi * (1 + 3 * kCubic * x * x);
  return {0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner, 0};
}

Value relu2(double x) {
  const double positive = std::max(x, 0.0);
  return {positive * positive, 2 * positive, 0};
}

Value value_of(Activation kind, double gate, double up) {
  switch (kind) {
    case Activation::swiglu:
      return swiglu(gate, up);
    case Activation::swiglu_clamped:
      return swiglu_clamped(gate, up);
    case Activation::gelu:
      return gelu(gate);
    case Activation::gelu_tanh:
      return gelu_tanh(gate);
    case Activation::relu2:
      return relu2(gate);
  }
  return {};
}

double up_at(Activation kind, ConstMatrix x, std::int64_t row, std::int64_t col,
             std::int64_t width) {
  return is_gated(kind) ? x.at(row, width + col) : 0;
}

void check_sizes(Activation kind, ConstMatrix x, ConstFloats row_scale, ConstMatrix y) {
  QPLAN_CHECK(x.rows == y.rows && x.cols == (is_gated(kind) ? 2 : 1) * y.cols,
              "an activation's input has its output's width, twice when gated");
  QPLAN_CHECK(row_scale.empty() || std::ssize(row_scale) == x.rows, "one scale a row");
}

}  // namespace

void activate(Activation kind, ConstMatrix x, ConstFloats row_scale, Matrix y) {
  check_sizes(kind, x, row_scale, y);
  for (std::int64_t r = 0; r < y.rows; ++r) {
    const double scale = row_scale.empty() ? 1 : row_scale[at(r)];
    for (std::int64_t c = 0; c < y.cols; ++c) {
      y.at(r, c) =
          static_cast<float>(scale * value_of(kind, x.at(r, c), up_at(kind, x, r, c, y.cols)).f);
    }
  }
}

void activate_backward(Activation kind, ConstMatrix x, ConstFloats row_scale, ConstMatrix dy,
                       Matrix dx, Floats drow_scale) {
  check_sizes(kind, x, row_scale, dy);
  for (std::int64_t r = 0; r < dy.rows; ++r) {
    const double scale = row_scale.empty() ? 1 : row_scale[at(r)];
    double by_scale = 0;
    for (std::int64_t c = 0; c < dy.cols; ++c) {
      const Value v = value_of(kind, x.at(r, c), up_at(kind, x, r, c, dy.cols));
      by_scale += dy.at(r, c) * v.f;
      dx.at(r, c) = static_cast<float>(scale * dy.at(r, c) * v.by_gate);
      if (is_gated(kind)) {
        dx.at(r, dy.cols + c) = static_cast<float>(scale * dy.at(r, c) * v.by_up);
      }
    }
    if (!drow_scale.empty()) drow_scale[at(r)] = static_cast<float>(by_scale);
  }
}

}  // namespace qplan::math
