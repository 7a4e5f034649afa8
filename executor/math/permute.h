#pragma once
// Token copies sorted by expert, and back.

#include <vector>

#include "executor/math/matrix.h"

namespace qplan::math {

// A copy is the j-th choice of token t, number t * top_k + j.
struct ExpertOrder {
  std::vector<std::int64_t> copies;   // sorted by expert; stable, so by token within an expert
  std::vector<std::int64_t> offsets;  // (experts + 1) expert e's copies are [offsets[e],
                                      // offsets[e + 1])
};

// `chosen` (tokens, top_k); negative entries (dropped copies) are left out.
ExpertOrder order_by_expert(std::span<const std::int32_t> chosen, std::int64_t experts);

// Keeps of every expert the `capacity` copies that are worth most (tokens, top_k), of equal ones
// the first; the others become -1.
void drop_over_capacity(std::span<std::int32_t> chosen, ConstFloats worth, std::int64_t experts,
                        std::int64_t capacity);

// y[i, :] = x[copies[i] / top_k, :]: one row a copy.
void permute(ConstMatrix x, const std::vector<std::int64_t>& copies, std::int64_t top_k, Matrix y);
// y[t, :] = sum over t's copies of weight * x[i, :], weights (tokens, top_k) or empty for 1. Rows
// of tokens without copies become 0. It is the gradient of permute() too.
void unpermute(ConstMatrix x, const std::vector<std::int64_t>& copies, std::int64_t top_k,
               ConstFloats weights, Matrix y);
// dx[i, :] = weight * dy[token, :]; dweights[copy] = dot(x[i, :], dy[token, :]), 0 for dropped
// ones.
void unpermute_backward(ConstMatrix x, const std::vector<std::int64_t>& copies, std::int64_t top_k,
                        ConstFloats weights, ConstMatrix dy, Matrix dx, Floats dweights);

}  // namespace qplan::math
