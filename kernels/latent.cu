// Heads of latent attention: queries, whose last part turns; keys and values out of the expanded
// latent, every head's key with the one rotary key behind it.

#include "kernels/device.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

// Neighbouring numbers turn together; `first`: of the vector, among those that turn.
__device__ void turn(Vector& v, const Rotation& rotation, std::int64_t row, std::int64_t first,
                     bool back) {
  const float2* angles =
      rotation.angles + rotation.position[row] * (rotation.turned / 2) + first / 2;
#pragma unroll
  for (int j = 0; j < kVector / 2; ++j) {
    const float2 angle = angles[j];
    const float sine = back ? -angle.y : angle.y;
    const float x = v.x[2 * j], y = v.x[2 * j + 1];
    v.x[2 * j] = x * angle.x - y * sine;
    v.x[2 * j + 1] = y * angle.x + x * sine;
  }
}

__global__ void __launch_bounds__(kThreads)
    turn_kernel(bf16* to, const bf16* from, LatentHeads h, Rotation rotation, bool back) {
  const std::int64_t dim = h.plain + h.turned, units = dim / kVector, i = thread_index();
  const std::int64_t row = i / units / h.heads, c = i % units * kVector;
  if (row >= h.rows) return;
  Vector v = load(from + i * kVector);
  if (c >= h.plain) turn(v, rotation, row, c - h.plain, back);
  store(to + i * kVector, v);
}

// A thread has a vector of a head's plain key or value.
__global__ void __launch_bounds__(kThreads)
    expand_kernel(bf16* k, bf16* v, const bf16* up, LatentHeads h) {
  const std::int64_t wide = h.plain + h.value, units = wide / kVector;
  const std::int64_t i = thread_index(), c = i % units * kVector, line = i / units;
  if (line >= h.rows * h.heads) return;
  bf16* to = c < h.plain ? k + line * (h.plain + h.turned) + c : v + line * h.value + c - h.plain;
  store(to, load(up + i * kVector));
}

// A thread turns a vector of a row's rotary key once, for some of the heads: beside what is moved,
// its three reads, one after the other, would hold whole warps up.
constexpr std::int64_t kHeadsOfThread = 16;
__global__ void __launch_bounds__(kThreads)
    spread_rotary_key_kernel(bf16* k, const bf16* latent, LatentHeads h, Rotation rotation) {
  const std::int64_t units = h.turned / kVector, i = thread_index();
  const std::int64_t row = i / units, c = i % units * kVector;
  if (row >= h.rows) return;
  Vector turned = load(latent + row * h.latent_stride + h.latent + c);
  turn(turned, rotation, row, c, false);
  const std::int64_t first = blockIdx.y * kHeadsOfThread;
  const std::int64_t end = first + kHeadsOfThread < h.heads ? first + kHeadsOfThread : h.heads;
  for (std::int64_t head = first; head < end; ++head) {
    store(k + (row * h.heads + head) * (h.plain + h.turned) + h.plain + c, turned);
  }
}

__global__ void __launch_bounds__(kThreads)
    expand_backward_kernel(bf16* dup, const bf16* dk, const bf16* dv, LatentHeads h) {
  const std::int64_t wide = h.plain + h.value, units = wide / kVector;
  const std::int64_t i = thread_index(), c = i % units * kVector, line = i / units;
  if (line >= h.rows * h.heads) return;
  const bf16* from =
      c < h.plain ? dk + line * (h.plain + h.turned) + c : dv + line * h.value + c - h.plain;
  store(dup + i * kVector, load(from));
}

// The rotary key's gradient is the sum of what the heads give, turned back.
__global__ void __launch_bounds__(kThreads)
    rotary_key_kernel(bf16* dlatent, const bf16* dk, LatentHeads h, Rotation rotation) {
  const std::int64_t units = h.turned / kVector, i = thread_index();
  const std::int64_t row = i / units, c = i % units * kVector;
  if (row >= h.rows) return;
  Vector sum = {};
  for (std::int64_t head = 0; head < h.heads; ++head) {
    const Vector one = load(dk + (row * h.heads + head) * (h.plain + h.turned) + h.plain + c);
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum.x[j] += one.x[j];
  }
  turn(sum, rotation, row, c, true);
  store(dlatent + row * h.latent_stride + h.latent + c, sum);
}

}  // namespace

void turn_latent_queries(bf16* to, const bf16* from, const LatentHeads& h, const Rotation& rotation,
                         bool back, cudaStream_t stream) {
  const std::int64_t threads = h.rows * h.heads * (h.plain + h.turned) / kVector;
  turn_kernel<<<blocks_for(threads), kThreads, 0, stream>>>(to, from, h, rotation, back);
}

void expand_latent(bf16* k, bf16* v, const bf16* up, const bf16* latent, const LatentHeads& h,
                   const Rotation& rotation, cudaStream_t stream) {
  const std::int64_t threads = h.rows * h.heads * (h.plain + h.value) / kVector;
  expand_kernel<<<blocks_for(threads), kThreads, 0, stream>>>(k, v, up, h);
  const dim3 grid(blocks_for(h.rows * h.turned / kVector),
                  static_cast<unsigned>(ceil_div(h.heads, kHeadsOfThread)));
  spread_rotary_key_kernel<<<grid, kThreads, 0, stream>>>(k, latent, h, rotation);
}

void expand_latent_backward(bf16* dup, bf16* dlatent, const bf16* dk, const bf16* dv,
                            const LatentHeads& h, const Rotation& rotation, cudaStream_t stream) {
  const std::int64_t threads = h.rows * h.heads * (h.plain + h.value) / kVector;
  expand_backward_kernel<<<blocks_for(threads), kThreads, 0, stream>>>(dup, dk, dv, h);
  rotary_key_kernel<<<blocks_for(h.rows * h.turned / kVector), kThreads, 0, stream>>>(dlatent, dk,
                                                                                      h, rotation);
}

}  // namespace qplan::kernels
