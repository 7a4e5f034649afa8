// Heads of queries, keys and values out of one packed row and back, turned on the way.

#include "kernels/device.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

// The numbers x and y of a head turn by an angle, or back by it.
template <bool Back>
__device__ void turn(float& x, float& y, float2 angle) {
  const float sine = Back ? -angle.y : angle.y, before = x;
  x = x * angle.x - y * sine;
  y = y * angle.x + before * sine;
}

// A thread moves two vectors of a head: a pair of turning ones, or two neighbours, which turn each
// in itself or not at all.
template <bool Pack>
__global__ void __launch_bounds__(kThreads)
    heads_kernel(PackedHeads h, Rotation rotation, QueryFactors queries) {
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

  const bool turns = unit < pairs, pair = turns && !rotation.neighbours;
  const std::int64_t first = pair ? unit * kVector : 2 * unit * kVector;
  const std::int64_t second = first + (pair ? rotation.turned / 2 : kVector);
  Vector a = load(from + first), b = load(from + second);
  if (turns && head < h.q_heads + h.kv_heads) {
    const float2* angles =
        rotation.angles + rotation.position[row] * (rotation.turned / 2) + unit * kVector;
    if (pair) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) turn<Pack>(a.x[j], b.x[j], angles[j]);
    } else {
#pragma unroll
      for (int j = 0; j < kVector; j += 2) {
        turn<Pack>(a.x[j], a.x[j + 1], angles[j / 2]);
        turn<Pack>(b.x[j], b.x[j + 1], angles[(kVector + j) / 2]);
      }
    }
  }
  if (queries.factors != nullptr && head < h.q_heads) {
    const float factor = queries.factors[queries.position[row]];
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      a.x[j] *= factor;
      b.x[j] *= factor;
    }
  }
  store(to + first, a);
  store(to + second, b);
}

template <bool Pack>
void launch(const PackedHeads& h, const Rotation& rotation, const QueryFactors& queries,
            cudaStream_t stream) {
  const std::int64_t heads = h.q_heads + h.kv_heads * (h.v != nullptr ? 2 : 1);
  const std::int64_t threads = h.rows * heads * h.head_dim / (2 * kVector);
  heads_kernel<Pack><<<blocks_for(threads), kThreads, 0, stream>>>(h, rotation, queries);
}

}  // namespace

void split_heads(const PackedHeads& heads, const Rotation& rotation, cudaStream_t stream,
                 const QueryFactors& queries) {
  launch<false>(heads, rotation, queries, stream);
}

void pack_heads(const PackedHeads& heads, const Rotation& rotation, cudaStream_t stream,
                const QueryFactors& queries) {
  launch<true>(heads, rotation, queries, stream);
}

}  // namespace qplan::kernels
