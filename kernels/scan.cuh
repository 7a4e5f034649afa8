#pragma once
// What kernels of Mamba-2's scan share, forward (scan.cu) and backward (scan_backward.cu).

#include "kernels/chunks.cuh"
#include "kernels/projected.cuh"

namespace qplan::kernels::ssd {

// Columns of a row.
struct Widths {
  std::int64_t inner, shared, channels, projected;
};
__host__ __device__ inline Widths widths_of(const Scan& s) {
  const std::int64_t inner = s.heads * s.head_dim, shared = s.groups * s.state_size;
  return {inner, shared, inner + 2 * shared, 2 * inner + 2 * shared + s.heads};
}

// Of a token and head: what its step is made of.
struct Step {
  float raw, size;
  bool held;  // at the smallest
};
__device__ inline std::int64_t step_column(const Scan& s, std::int64_t head) {
  const Widths w = widths_of(s);
  return w.inner + w.channels + head;
}
__device__ inline float raw_step(const Scan& s, std::int64_t row, std::int64_t head) {
  return static_cast<float>(s.projected[row * widths_of(s).projected + step_column(s, head)]);
}
__device__ inline float rate_of(const Scan& s, std::int64_t head) {
  return -expf(static_cast<float>(s.a_log[head]));
}
__device__ inline Step step_of(const Scan& s, float raw, std::int64_t head) {
  Step step{};
  step.raw = raw + static_cast<float>(s.dt_bias[head]);
  const float size = softplus(step.raw);
  step.held = size < s.step_min;
  step.size = step.held ? s.step_min : size;
  return step;
}

// Where a chunk's inputs, B and C lie.
__device__ inline Rectangle inputs_of(const Scan& s, const ChunkPlace& at, std::int64_t head) {
  const Widths w = widths_of(s);
  return {s.xbc + at.row * w.channels + head * s.head_dim, w.channels, at.rows, s.head_dim};
}
__device__ inline Rectangle shared_of(const Scan& s, const ChunkPlace& at, std::int64_t group,
                                      bool c) {
  const Widths w = widths_of(s);
  return {s.xbc + at.row * w.channels + w.inner + (c ? w.shared : 0) + group * s.state_size,
          w.channels, at.rows, s.state_size};
}
// ... of a head's output, or of its gradient, and one of its states.
__device__ inline Rectangle outputs_of(const Scan& s, const bf16* y, const ChunkPlace& at,
                                       std::int64_t head) {
  const Widths w = widths_of(s);
  return {y + at.row * w.inner + head * s.head_dim, w.inner, at.rows, s.head_dim};
}
__device__ inline std::int64_t state_begin(const Scan& s, const ChunkPlace& at, std::int64_t head) {
  return (at.index * s.heads + head) * s.head_dim * s.state_size;
}
__device__ inline Rectangle state_of(const Scan& s, const bf16* states, const ChunkPlace& at,
                                     std::int64_t head) {
  return {states + state_begin(s, at, head), s.state_size, s.head_dim, s.state_size};
}
__device__ inline std::int64_t group_of(const Scan& s, std::int64_t head) {
  return head / (s.heads / s.groups);
}
__device__ inline const ChunkGates& gates_of(const Scan& s, const ChunkGates* gates,
                                             const ChunkPlace& at, std::int64_t head) {
  return gates[at.index * s.heads + head];
}
// The state that each chunk begins with; from behind, the gradient of the one that it leaves.
struct States {
  bf16 *begin, *end_gradients;
};

// Calls launch(a head's width, a state's) as constants.
template <class Launch>
void with_widths(const Scan& s, Launch launch) {
  with_width(s.head_dim,
             [&](auto dim) { with_width(s.state_size, [&](auto size) { launch(dim, size); }); });
}

// Fills the gates, with which the scratch begins; what follows them.
bf16* fill_gates(bf16* scratch, const Scan& s, cudaStream_t stream);
// The states that chunks begin with; with dy, also the gradients of those that they leave.
void walk_states(const States& states, const ChunkGates* gates, const bf16* dy, const Scan& s,
                 cudaStream_t stream);

}  // namespace qplan::kernels::ssd
