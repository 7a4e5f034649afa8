// bf16 to fp8: an array's scale, its numbers by that scale, and transposed copies.

#include <cuda_fp8.h>

#include "kernels/device.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

constexpr int kMostBlocks = 1056;  // of a pass over an array: eight a multiprocessor
// A tile of a transposed copy, in bytes; its rows are words in shared memory, one more so that
// what a warp reads lies in 32 banks.
constexpr int kTile = 128, kWords = kTile / 4 + 1;
constexpr int kPiece = 16;  // numbers that a thread brings at once

unsigned pass_blocks(std::int64_t threads) {
  const std::int64_t blocks = ceil_div(threads, kThreads);
  return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

// executor/math/quantize.h's quantization_scale, as bits, which are ordered as the numbers are.
__device__ unsigned scale_bits(float largest) {
  const unsigned bits = __float_as_uint(largest);
  const unsigned exponent = (bits >> 23U) + ((bits & 0x7fffffU) > 0x600000U ? 1U : 0U);
  return min(max(exponent, 127U - 100U), 127U + 126U) << 23U;
}

__global__ void __launch_bounds__(kThreads)
    amax_kernel(unsigned* scale, const bf16* x, std::int64_t n) {
  float largest = 0;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads * kVector;
#pragma unroll 4
  for (std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * kVector; i < n;
       i += stride) {
    const Vector v = load(x + i);
#pragma unroll
    for (int j = 0; j < kVector; ++j) largest = fmaxf(largest, fabsf(v.x[j]));
  }
  largest = warp_max(largest);
  // The order in which maxima arrive does not matter.
  if (threadIdx.x % kWarp == 0) atomicMax(scale, scale_bits(largest));
}

// Sixteen numbers of x, by `factor`, as bytes.
__device__ uint4 quantized(const bf16* x, float factor, __nv_fp8_interpretation_t format) {
  uint4 bytes;
  auto* words = reinterpret_cast<unsigned*>(&bytes);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Vector v = load(x + half * kVector);
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      const float* four = v.x + 4 * word;
      const unsigned low =
          __nv_cvt_float2_to_fp8x2({four[0] * factor, four[1] * factor}, __NV_SATFINITE, format);
      const unsigned high =
          __nv_cvt_float2_to_fp8x2({four[2] * factor, four[3] * factor}, __NV_SATFINITE, format);
      words[2 * half + word] = low | high << 16U;
    }
  }
  return bytes;
}

// What numbers are multiplied by: the largest becomes at most 7/4 2^exponent.
__device__ float factor_of(const float* scale, __nv_fp8_interpretation_t format) {
  return (format == __NV_E4M3 ? 0x1p8F : 0x1p15F) / scale[0];
}

__global__ void __launch_bounds__(kThreads)
    quantize_kernel(uint4* y, const bf16* x, const float* scale, __nv_fp8_interpretation_t format,
                    std::int64_t pieces) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < pieces) y[i] = quantized(x + i * kPiece, factor_of(scale, format), format);
}

// Where a tile's bytes come from: fp8 numbers as they are, or others that become so.
struct Bytes {
  const std::uint8_t* x;
  __device__ uint4 piece(std::int64_t at) const { return *reinterpret_cast<const uint4*>(x + at); }
};
struct Numbers {
  const bf16* x;
  const float* scale;
  __nv_fp8_interpretation_t format;
  __device__ uint4 piece(std::int64_t at) const {
    return quantized(x + at, factor_of(scale, format), format);
  }
};

// Byte k of each of four words, in their order.
__device__ unsigned column(const unsigned (&rows)[4], int k) {
  const unsigned pick = static_cast<unsigned>(k) | static_cast<unsigned>(4 + k) << 4U;
  const unsigned low = __byte_perm(rows[0], rows[1], pick);
  const unsigned high = __byte_perm(rows[2], rows[3], pick);
  return __byte_perm(low, high, 0x5410U);
}

template <class From>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(std::uint8_t* y, From from, std::int64_t rows, std::int64_t cols) {
  __shared__ unsigned tile[kTile][kWords];
  const std::int64_t row = std::int64_t{blockIdx.y} * kTile, col = std::int64_t{blockIdx.x} * kTile;
  for (int i = threadIdx.x; i < kTile * kTile / kPiece; i += kThreads) {
    const int r = i / (kTile / kPiece), c = i % (kTile / kPiece) * kPiece;
    if (row + r >= rows || col + c >= cols) continue;
    const uint4 bytes = from.piece((row + r) * cols + col + c);
    unsigned* words = tile[r] + c / 4;
    words[0] = bytes.x;
    words[1] = bytes.y;
    words[2] = bytes.z;
    words[3] = bytes.w;
  }
  __syncthreads();
  // Blocks of 4 x 4 bytes: eight of a warp's lanes write 32 neighbours of one column, a sector.
  constexpr int kLanes = 8;
  for (int i = threadIdx.x; i < kTile * kTile / 16; i += kThreads) {
    const int group = i / kWarp, lane = i % kWarp;
    const int r = (group % (kTile / 32) * kLanes + lane % kLanes) * 4;
    const int word = group / (kTile / 32) * (kWarp / kLanes) + lane / kLanes;
    if (row + r >= rows || col + 4 * word >= cols) continue;
    unsigned four[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) four[j] = tile[r + j][word];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      *reinterpret_cast<unsigned*>(y + (col + 4 * word + k) * rows + row + r) = column(four, k);
    }
  }
}

template <class From>
void turn(void* y, const From& from, std::int64_t rows, std::int64_t cols, cudaStream_t stream) {
  const dim3 tiles(static_cast<unsigned>(ceil_div(cols, kTile)),
                   static_cast<unsigned>(ceil_div(rows, kTile)));
  transpose_kernel<<<tiles, kThreads, 0, stream>>>(static_cast<std::uint8_t*>(y), from, rows, cols);
}

__nv_fp8_interpretation_t format_of(Fp8 format) {
  return format == Fp8::e4m3 ? __NV_E4M3 : __NV_E5M2;
}

}  // namespace

void quantization_scale(float* scale, const bf16* x, std::int64_t n, cudaStream_t stream) {
  cudaMemsetAsync(scale, 0, sizeof(float), stream);
  void* const bits = scale;
  amax_kernel<<<pass_blocks(ceil_div(n, kVector)), kThreads, 0, stream>>>(
      static_cast<unsigned*>(bits), x, n);
}

void quantize(void* y, const bf16* x, const float* scale, Fp8 format, std::int64_t n,
              cudaStream_t stream) {
  const std::int64_t pieces = n / kPiece;
  quantize_kernel<<<static_cast<unsigned>(ceil_div(pieces, kThreads)), kThreads, 0, stream>>>(
      static_cast<uint4*>(y), x, scale, format_of(format), pieces);
}

void quantize_transposed(void* y, const bf16* x, const float* scale, Fp8 format, std::int64_t rows,
                         std::int64_t cols, cudaStream_t stream) {
  turn(y, Numbers{x, scale, format_of(format)}, rows, cols, stream);
}

void transpose_bytes(void* y, const void* x, std::int64_t rows, std::int64_t cols,
                     cudaStream_t stream) {
  turn(y, Bytes{static_cast<const std::uint8_t*>(x)}, rows, cols, stream);
}

}  // namespace qplan::kernels
