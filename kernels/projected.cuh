#pragma once
// Where the parts of a projection's row are, and a function of one number that gates share.

#include "kernels/device.cuh"
#include "kernels/recurrent.h"

namespace qplan::kernels {

// log(1 + exp(x)), without overflow.
__device__ inline float softplus(float x) {
  return fmaxf(x, 0) + log1pf(expf(-fabsf(x)));
}

// Columns of the values, or gates, that a key head serves, and of all that a key head has.
__device__ inline std::int64_t served(const ProjectedColumns& p) {
  return p.heads / p.key_heads * p.value_dim;
}
__device__ inline std::int64_t key_head_begin(const ProjectedColumns& p, std::int64_t key_head) {
  return key_head * 2 * (p.key_dim + served(p));
}

// The column of the c-th channel {queries|keys|values}. Eight from a multiple of 8 on are
// neighbours.
__device__ inline std::int64_t channel_column(const ProjectedColumns& p, std::int64_t c) {
  if (p.key_heads == 0) return p.channels + c;
  const std::int64_t keys = p.key_heads * p.key_dim;
  if (c < 2 * keys) {
    const std::int64_t key = c % keys;
    return key_head_begin(p, key / p.key_dim) + c / keys * p.key_dim + key % p.key_dim;
  }
  const std::int64_t value = c - 2 * keys;
  return key_head_begin(p, value / served(p)) + 2 * p.key_dim + value % served(p);
}
__device__ inline std::int64_t gate_column(const ProjectedColumns& p, std::int64_t c) {
  if (p.key_heads == 0) return p.gates + c;
  return key_head_begin(p, c / served(p)) + 2 * p.key_dim + served(p) + c % served(p);
}
// Of a value head; `decay`: of its decay.
__device__ inline std::int64_t strength_column(const ProjectedColumns& p, std::int64_t head,
                                               bool decay) {
  if (p.key_heads == 0) return p.strengths + (decay ? p.heads : 0) + head;
  const std::int64_t group = p.heads / p.key_heads, first = head / group * group;
  return key_head_begin(p, p.key_heads) + 2 * first + (decay ? group : 0) + head - first;
}

}  // namespace qplan::kernels
