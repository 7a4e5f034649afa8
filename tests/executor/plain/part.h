#pragma once
// What the layers of the plain model are made of: arrays of their own, and a part of the model with
// its parameters at hand.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "executor/io/weights.h"
#include "executor/math/embedding.h"
#include "executor/math/gemm.h"
#include "executor/math/norm.h"
#include "models/parameters.h"

namespace qplan::plain {

using namespace math;
using enum ParameterRole;

struct Buffer {
  std::int64_t rows = 0, cols = 0;
  std::vector<float> data;
  Buffer() = default;
  Buffer(std::int64_t r, std::int64_t c) : rows(r), cols(c), data(at(r * c)) {}
  [[nodiscard]] Matrix view() { return {data, rows, cols}; }
  [[nodiscard]] ConstMatrix view() const { return {data, rows, cols}; }
};

// What experts take of a sequence: ceil(top_k tokens / experts x factor) copies; 0: all. Of more
// they keep those with the largest probabilities, or the first.
struct Capacity {
  double factor = 0;
  bool keeps_first = false;
};

// A part of the model with its parameters at hand.
struct Part {
  const ModelSpec& m;
  const std::vector<ModelParameter>& parameters;
  const std::vector<std::vector<float>>& weights;
  std::vector<std::vector<float>>& gradients;
  Capacity capacity{};
  ModelPart part = ModelPart::decoder;
  std::int64_t layer = 0;

  [[nodiscard]] const ModelParameter* find(ParameterRole role, bool bias = false,
                                           std::int64_t copy = 0) const {
    const auto it = std::find_if(parameters.begin(), parameters.end(), [&](const auto& p) {
      return p.part == part && p.layer == layer && p.parameter.role == role &&
             p.parameter.bias == bias && p.copy == copy;
    });
    return it == parameters.end() ? nullptr : &*it;
  }
  [[nodiscard]] ConstFloats vector(ParameterRole role, bool bias = false,
                                   std::int64_t copy = 0) const {
    const ModelParameter* p = find(role, bias, copy);
    return p == nullptr ? ConstFloats() : ConstFloats(weights[at(p->index)]);
  }
  [[nodiscard]] Floats gradient(ParameterRole role, bool bias = false,
                                std::int64_t copy = 0) const {
    const ModelParameter* p = find(role, bias, copy);
    return p == nullptr ? Floats() : Floats(gradients[at(p->index)]);
  }
  [[nodiscard]] ConstMatrix matrix(ParameterRole role, std::int64_t copy = 0) const {
    const ModelParameter* p = find(role, false, copy);
    return {vector(role, false, copy), p->parameter.rows, p->parameter.cols};
  }

  [[nodiscard]] Buffer linear(ParameterRole role, ConstMatrix x, std::int64_t copy = 0) const {
    const ConstMatrix w = matrix(role, copy);
    Buffer y(x.rows, w.rows);
    math::linear(x, w, y.view());
    const ConstFloats bias = vector(role, true, copy);
    if (!bias.empty()) add_bias(bias, y.view());
    return y;
  }
  [[nodiscard]] Buffer linear_backward(ParameterRole role, ConstMatrix x, ConstMatrix dy,
                                       std::int64_t copy = 0) const {
    const ConstMatrix w = matrix(role, copy);
    Buffer dx(x.rows, x.cols);
    linear_dgrad(dy, w, dx.view());
    linear_wgrad(dy, x, {gradient(role, false, copy), w.rows, w.cols});
    const Floats dbias = gradient(role, true, copy);
    if (!dbias.empty()) bias_backward(dy, dbias);
    return dx;
  }

  [[nodiscard]] NormShape norm_shape() const { return {m.norm_epsilon, norm_around_zero(m)}; }
  [[nodiscard]] Buffer norm(ParameterRole role, const Buffer& x) const {
    Buffer y(x.rows, x.cols);
    if (m.norm == Norm::layer_norm) {
      layer_norm(x.view(), vector(role), vector(role, true), norm_shape(), y.view());
    } else {
      rms_norm(x.view(), vector(role), norm_shape(), y.view());
    }
    return y;
  }
  [[nodiscard]] Buffer norm_backward(ParameterRole role, const Buffer& x, const Buffer& dy) const {
    Buffer dx(x.rows, x.cols);
    if (m.norm == Norm::layer_norm) {
      layer_norm_backward(x.view(), vector(role), norm_shape(), dy.view(), dx.view(),
                          gradient(role), gradient(role, true));
    } else {
      rms_norm_backward(x.view(), vector(role), norm_shape(), dy.view(), dx.view(), gradient(role));
    }
    return dx;
  }
};

inline void add_to(Buffer& y, const Buffer& x) {
  add(x.view(), y.view());
}

// A row of heads as rows of one head each.
inline Buffer by_heads(const Buffer& x, std::int64_t dim) {
  Buffer y = x;
  y.rows = x.rows * x.cols / dim;
  y.cols = dim;
  return y;
}

}  // namespace qplan::plain
