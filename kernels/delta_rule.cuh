#pragma once
// What kernels of the gated delta rule share, forward (delta_rule.cu) and backward
// (delta_rule_backward.cu): where things lie, and what kernels leave each other.

#include "kernels/chunks.cuh"

namespace qplan::kernels::delta {

__device__ inline float scale_of(const DeltaRule& r) {
  return rsqrtf(static_cast<float>(r.key_dim));
}
__device__ inline std::int64_t key_head_of(const DeltaRule& r, std::int64_t head) {
  return head / (r.value_heads / r.key_heads);
}

// Where queries, keys, values and their likes lie of a chunk and head.
__device__ inline Rectangle keys_of(const DeltaRule& r, const bf16* x, const ChunkPlace& at,
                                    std::int64_t key_head) {
  const std::int64_t stride = r.key_heads * r.key_dim;
  return {x + at.row * stride + key_head * r.key_dim, stride, at.rows, r.key_dim};
}
__device__ inline Rectangle values_of(const DeltaRule& r, const bf16* x, const ChunkPlace& at,
                                      std::int64_t head) {
  const std::int64_t stride = r.value_heads * r.value_dim;
  return {x + at.row * stride + head * r.value_dim, stride, at.rows, r.value_dim};
}
// ... in scratch: rows of a chunk's tokens, and states.
__device__ inline std::int64_t own_begin(const DeltaRule& r, const ChunkPlace& at,
                                         std::int64_t head, std::int64_t rows, std::int64_t cols) {
  return (at.index * r.value_heads + head) * rows * cols;
}
__device__ inline Rectangle own_of(const DeltaRule& r, const bf16* x, const ChunkPlace& at,
                                   std::int64_t head, std::int64_t rows, std::int64_t cols) {
  return {x + own_begin(r, at, head, rows, cols), cols, rows, cols};
}
__device__ inline Rectangle slice_of(Rectangle whole, std::int64_t first) {
  return {whole.x + first, whole.stride, whole.rows, whole.cols - first};
}
// What kernels leave each other, of each chunk and head: gates, T, W, E (T V at first) and D, 64
// rows each, the state that a chunk begins with, and the gradient of the one that it leaves.
struct Between {
  ChunkGates* gates;
  bf16 *w, *e, *begin, *t, *d, *end_gradients;
};
__device__ inline const ChunkGates& gates_of(const DeltaRule& r, const Between& b,
                                             const ChunkPlace& at, std::int64_t head) {
  return b.gates[at.index * r.value_heads + head];
}
constexpr int kSlice = 32;  // columns of a state that a block has along a sequence

template <int KeyDim, int ValueDim>
struct OutputShared {
  Tile<kChunk, KeyDim> q, k;
  Tile<kChunk, ValueDim> values;  // E, or the gradient of the output
  Tile<KeyDim, ValueDim> state;
  Tile<kChunk, kChunk> weights;
  ChunkGates gates;
};

// A chunk and head a block; columns of a head's state along a sequence.
inline dim3 chunk_grid(const DeltaRule& r, std::int64_t heads) {
  return {static_cast<unsigned>(r.batch * chunks_of(r.seq_len)), static_cast<unsigned>(heads)};
}
inline dim3 walk_grid(const DeltaRule& r) {
  return {static_cast<unsigned>(r.batch * r.value_heads),
          static_cast<unsigned>(ceil_div(r.value_dim, kSlice))};
}

// The scratch's parts, one behind the other.
inline Between arranged(const DeltaRule& r, bf16* scratch, bool backward) {
  const std::int64_t all = r.batch * chunks_of(r.seq_len) * r.value_heads;
  const std::int64_t keys = all * kChunk * r.key_dim, values = all * kChunk * r.value_dim;
  const std::int64_t states = all * r.key_dim * r.value_dim;
  Between b{};
  b.gates = reinterpret_cast<ChunkGates*>(scratch);
  b.w = reinterpret_cast<bf16*>(b.gates + all);
  b.e = b.w + keys;
  b.begin = b.e + values;
  if (!backward) return b;
  b.t = b.begin + states;
  b.d = b.t + all * kChunk * kChunk;
  b.end_gradients = b.d + values;
  return b;
}

// Calls launch(a key's width, a value's) as constants.
template <class Launch>
void with_widths(const DeltaRule& r, Launch launch) {
  with_width(r.key_dim,
             [&](auto key) { with_width(r.value_dim, [&](auto value) { launch(key, value); }); });
}

// Gates and E of all chunks, the states that they begin with, and T where there is a place for it.
void find_errors(const Between& b, const DeltaRule& r, cudaStream_t stream);

}  // namespace qplan::kernels::delta
