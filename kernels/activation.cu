// SwiGLU of [gate | up] rows.

#include "kernels/device.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

__device__ float sigmoid(float x) {
  return 1 / (1 + __expf(-x));
}

__global__ void __launch_bounds__(kThreads)
    swiglu_kernel(bf16* y, const bf16* x, const float* scale, std::int64_t rows,
                  std::int64_t width) {
  const std::int64_t i = thread_index() * kVector;
  const std::int64_t row = i / width, c = i % width;
  if (row >= rows) return;
  Vector gate = load(x + row * 2 * width + c);
  const Vector up = load(x + row * 2 * width + width + c);
  const float by = scale != nullptr ? scale[row] : 1;
#pragma unroll
  for (int j = 0; j < kVector; ++j) gate.x[j] *= by * sigmoid(gate.x[j]) * up.x[j];
  store(y + i, gate);
}

// Gradients of one vector; returns its part of the scale's gradient.
__device__ float backward(bf16* dx, const bf16* x, const bf16* dy, float scale,
                          std::int64_t width) {
  Vector gate = load(x), up = load(x + width);
  const Vector out = load(dy);
  float dscale = 0;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float s = sigmoid(gate.x[j]), silu = gate.x[j] * s, g = out.x[j] * scale;
    dscale += out.x[j] * silu * up.x[j];
    gate.x[j] = g * up.x[j] * s * (1 + gate.x[j] * (1 - s));
    up.x[j] = g * silu;
  }
  store(dx, gate);
  store(dx + width, up);
  return dscale;
}

__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(bf16* dx, const bf16* x, const bf16* dy, std::int64_t rows,
                           std::int64_t width) {
  const std::int64_t i = thread_index() * kVector;
  const std::int64_t row = i / width, c = i % width;
  if (row >= rows) return;
  const std::int64_t at = row * 2 * width + c;
  backward(dx + at, x + at, dy + i, 1, width);
}

// One warp a row, for the sum over its columns: experts' rows are short.
__global__ void __launch_bounds__(kThreads)
    scaled_swiglu_backward_kernel(bf16* dx, float* dscale, const bf16* x, const bf16* dy,
                                  const float* scale, std::int64_t rows, std::int64_t width) {
  const std::int64_t row = thread_index() / kWarp;
  if (row >= rows) return;
  const float by = scale[row];
  float sum = 0;
#pragma unroll 2
  for (std::int64_t c = threadIdx.x % kWarp * kVector; c < width; c += kWarp * kVector) {
    const std::int64_t at = row * 2 * width + c;
    sum += backward(dx + at, x + at, dy + row * width + c, by, width);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) dscale[row] = sum;
}

}  // namespace

void swiglu(bf16* y, const bf16* x, const float* scale, std::int64_t rows, std::int64_t width,
            cudaStream_t stream) {
  const auto blocks = blocks_for(rows * width / kVector);
  swiglu_kernel<<<blocks, kThreads, 0, stream>>>(y, x, scale, rows, width);
}

void swiglu_backward(bf16* dx, float* dscale, const bf16* x, const bf16* dy, const float* scale,
                     std::int64_t rows, std::int64_t width, cudaStream_t stream) {
  if (scale == nullptr) {
    const auto blocks = blocks_for(rows * width / kVector);
    swiglu_backward_kernel<<<blocks, kThreads, 0, stream>>>(dx, x, dy, rows, width);
  } else {
    const auto blocks = blocks_for(rows * kWarp);
    scaled_swiglu_backward_kernel<<<blocks, kThreads, 0, stream>>>(dx, dscale, x, dy, scale, rows,
                                                                   width);
  }
}

}  // namespace qplan::kernels
