#pragma once
// What kernels share: 16-byte vectors of bf16, and sums over warps and blocks.

#include <cuda_bf16.h>

#include <cstdint>

namespace qplan::kernels {

using bf16 = __nv_bfloat16;

inline constexpr int kWarp = 32;
inline constexpr int kVector = 8;  // bf16 numbers in one 16-byte access

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// Threads of a block where nothing else decides, and blocks for so many threads.
inline constexpr int kThreads = 256;
inline unsigned blocks_for(std::int64_t threads) {
  return static_cast<unsigned>(ceil_div(threads, kThreads));
}
__device__ inline std::int64_t thread_index() {
  return std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
}

// Eight numbers in fp32, read and written as 16 bytes of bf16.
struct Vector {
  float x[kVector];
};

__device__ inline uint4 load_bits(const bf16* p) {
  return *reinterpret_cast<const uint4*>(p);
}

__device__ inline Vector numbers_of(const uint4& bits) {
  const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&bits);
  Vector v;
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const float2 two = __bfloat1622float2(pairs[i]);
    v.x[2 * i] = two.x;
    v.x[2 * i + 1] = two.y;
  }
  return v;
}

__device__ inline Vector load(const bf16* p) {
  return numbers_of(load_bits(p));
}

__device__ inline Vector load(const float* p) {
  const float4 low = *reinterpret_cast<const float4*>(p);
  const float4 high = *reinterpret_cast<const float4*>(p + 4);
  return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}

__device__ inline void store(bf16* p, const Vector& v) {
  uint4 bits;
  auto* pairs = reinterpret_cast<__nv_bfloat162*>(&bits);
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    pairs[i] = __floats2bfloat162_rn(v.x[2 * i], v.x[2 * i + 1]);
  }
  *reinterpret_cast<uint4*>(p) = bits;
}

template <class T>
__device__ inline T warp_sum(T x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
  return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2)
    x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, step));
  return x;
}

// Of unsigned numbers in one instruction, where the hardware has it.
__device__ inline unsigned warp_max(unsigned x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xffffffffU, x);
#else
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const unsigned other = __shfl_xor_sync(0xffffffffU, x, step);
    x = other > x ? other : x;
  }
  return x;
#endif
}

__device__ inline unsigned warp_min(unsigned x) {
  return ~warp_max(~x);
}

// 2^x in two instructions: denormal numbers are 0.
__device__ inline float exp2_fast(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// Two numbers side by side.
__device__ inline std::uint32_t pair_of(float x, float y) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const std::uint32_t*>(&two);
}

// Four threads have two numbers each of four times 8 columns; afterwards each has 8 of one.
__device__ inline void transpose_quad(std::uint32_t (&v)[4]) {
  const bool upper = threadIdx.x & 2, odd = threadIdx.x & 1;
  std::uint32_t x = upper ? v[0] : v[2], y = upper ? v[1] : v[3];
  x = __shfl_xor_sync(0xffffffffU, x, 2);
  y = __shfl_xor_sync(0xffffffffU, y, 2);
  v[0] = upper ? x : v[0];
  v[1] = upper ? y : v[1];
  v[2] = upper ? v[2] : x;
  v[3] = upper ? v[3] : y;
  x = odd ? v[0] : v[1];
  y = odd ? v[2] : v[3];
  x = __shfl_xor_sync(0xffffffffU, x, 1);
  y = __shfl_xor_sync(0xffffffffU, y, 1);
  v[0] = odd ? x : v[0];
  v[1] = odd ? v[1] : x;
  v[2] = odd ? y : v[2];
  v[3] = odd ? v[3] : y;
}

// The sum over a block of `Threads`, for every thread. May be called again at once.
template <int Threads, class T>
__device__ inline T block_sum(T x) {
  x = warp_sum(x);
  if constexpr (Threads > kWarp) {
    __shared__ T parts[Threads / kWarp];
    __syncthreads();
    if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = x;
    __syncthreads();
    x = 0;
#pragma unroll
    for (int i = 0; i < Threads / kWarp; ++i) x += parts[i];
  }
  return x;
}

// The quotient in two instructions, to 2 units in its last place: gates and activations would wait
// for an exact one's ten instead of for memory.
__device__ inline float sigmoid(float x) {
  return __fdividef(1.0F, 1 + __expf(-x));
}

}  // namespace qplan::kernels
