// Heads of queries, keys and values out of one packed row and back, turned on the way.

#include "kernels/device.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

// A thread moves two vectors of a head: a pair of turning ones, or two neighbours behind them.
template <bool Pack>
__global__ void __launch_bounds__(kThreads) heads_kernel(PackedHeads h, Rotation rotation) {
  const std::int64_t units = h.head_dim / (2 * kVector), pairs = rotation.turned / (2 * kVector);
  const std::int64_t heads = h.q_heads + h.kv_heads * (h.v != nullptr ? 2 : 1);
  const std::int64_t i = thread_index();
  const std::int64_t unit = i % units, head = i / units % heads, row = i / units / heads;
  if (row >= h.rows) return;

  bf16* own = nullptr;
  if (head < h.q_heads) {
    own = h.q + (row * h.q_heads + head) * h.head_dim;
  } else if (head < h.q_heads + h.kv_heads) {
    own = h.k + (row * h.kv_heads + head - h.q_heads) * h.head_dim;
  } else {
    own = h.v + (row * h.kv_heads + head - h.q_heads - h.kv_heads) * h.head_dim;
  }
  bf16* packed = h.packed + (row * heads + head) * h.head_dim;
  const bf16* from = Pack ? own : packed;
  bf16* to = Pack ? packed : own;

  const bool pair = unit < pairs;
  const std::int64_t first = pair ? unit * kVector : 2 * unit * kVector;
  const std::int64_t second = first + (pair ? rotation.turned / 2 : kVector);
  Vector a = load(from + first), b = load(from + second);
  if (pair && head < h.q_heads + h.kv_heads) {
    const float2* angles = rotation.angles + rotation.position[row] * (rotation.turned / 2) + first;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float2 angle = angles[j];
      const float sine = Pack ? -angle.y : angle.y;
      const float x = a.x[j], y = b.x[j];
      a.x[j] = x * angle.x - y * sine;
      b.x[j] = y * angle.x + x * sine;
    }
  }
  store(to + first, a);
  store(to + second, b);
}

template <bool Pack>
void launch(const PackedHeads& h, const Rotation& rotation, cudaStream_t stream) {
  const std::int64_t heads = h.q_heads + h.kv_heads * (h.v != nullptr ? 2 : 1);
  const std::int64_t threads = h.rows * heads * h.head_dim / (2 * kVector);
  heads_kernel<Pack>
      <<<static_cast<unsigned>(ceil_div(threads, kThreads)), kThreads, 0, stream>>>(h, rotation);
}

}  // namespace

void split_heads(const PackedHeads& heads, const Rotation& rotation, cudaStream_t stream) {
  launch<false>(heads, rotation, stream);
}

void pack_heads(const PackedHeads& heads, const Rotation& rotation, cudaStream_t stream) {
  launch<true>(heads, rotation, stream);
}

}  // namespace qplan::kernels
