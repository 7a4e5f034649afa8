#include "executor/math/permute.h"

#include <algorithm>

namespace qplan::math {

ExpertOrder order_by_expert(std::span<const std::int32_t> chosen, std::int64_t experts) {
  ExpertOrder order;
  order.offsets.assign(at(experts + 1), 0);
  for (const std::int32_t e : chosen) {
    if (e >= 0) ++order.offsets[at(e + 1)];
  }
  for (std::size_t e = 1; e < order.offsets.size(); ++e) order.offsets[e] += order.offsets[e - 1];
  order.copies.resize(at(order.offsets.back()));
  std::vector<std::int64_t> next(order.offsets.begin(), order.offsets.end() - 1);
  for (std::size_t copy = 0; copy < chosen.size(); ++copy) {
    if (chosen[copy] < 0) continue;
    order.copies[at(next[at(chosen[copy])]++)] = static_cast<std::int64_t>(copy);
  }
  return order;
}

void drop_over_capacity(std::span<std::int32_t> chosen, ConstFloats worth, std::int64_t experts,
                        std::int64_t capacity) {
  ExpertOrder order = order_by_expert(chosen, experts);
  for (std::int64_t e = 0; e < experts; ++e) {
    const auto begin = order.copies.begin() + order.offsets[at(e)];
    const auto end = order.copies.begin() + order.offsets[at(e + 1)];
    std::stable_sort(begin, end,
                     [&](std::int64_t a, std::int64_t b) { return worth[at(a)] > worth[at(b)]; });
    for (auto copy = begin + std::min<std::int64_t>(capacity, end - begin); copy < end; ++copy) {
      chosen[at(*copy)] = -1;
    }
  }
}

void permute(ConstMatrix x, const std::vector<std::int64_t>& copies, std::int64_t top_k, Matrix y) {
  QPLAN_CHECK(std::ssize(copies) == y.rows && x.cols == y.cols, "one row a token copy");
  for (std::int64_t i = 0; i < y.rows; ++i) {
    const ConstFloats source = x.row(copies[at(i)] / top_k);
    std::copy(source.begin(), source.end(), y.row(i).begin());
  }
}

void unpermute(ConstMatrix x, const std::vector<std::int64_t>& copies, std::int64_t top_k,
               ConstFloats weights, Matrix y) {
  QPLAN_CHECK(std::ssize(copies) == x.rows && x.cols == y.cols, "one row a token copy");
  // Summed in the order of a token's choices, so that no distribution of experts changes a bit.
  std::vector<std::int64_t> row_of(at(y.rows * top_k), -1);
  for (std::int64_t i = 0; i < x.rows; ++i) row_of[at(copies[at(i)])] = i;
  for (std::int64_t t = 0; t < y.rows; ++t) {
    const Floats target = y.row(t);
    std::fill(target.begin(), target.end(), 0.0F);
    for (std::int64_t copy = t * top_k; copy < (t + 1) * top_k; ++copy) {
      if (row_of[at(copy)] < 0) continue;
      const ConstFloats source = x.row(row_of[at(copy)]);
      const float weight = weights.empty() ? 1.0F : weights[at(copy)];
      for (std::size_t c = 0; c < target.size(); ++c) target[c] += weight * source[c];
    }
  }
}

void unpermute_backward(ConstMatrix x, const std::vector<std::int64_t>& copies, std::int64_t top_k,
                        ConstFloats weights, ConstMatrix dy, Matrix dx, Floats dweights) {
  std::fill(dweights.begin(), dweights.end(), 0.0F);
  for (std::int64_t i = 0; i < dx.rows; ++i) {
    const std::int64_t copy = copies[at(i)];
    const ConstFloats gradient = dy.row(copy / top_k);
    const float weight = weights.empty() ? 1.0F : weights[at(copy)];
    double product = 0;
    for (std::size_t c = 0; c < gradient.size(); ++c) {
      if (!dweights.empty()) product += static_cast<double>(x.row(i)[c]) * gradient[c];
      dx.row(i)[c] = weight * gradient[c];
    }
    if (!dweights.empty()) dweights[at(copy)] = static_cast<float>(product);
  }
}

}  // namespace qplan::math
