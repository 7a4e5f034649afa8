// Rows times a number each, and back: experts' tokens before the experts read them (Llama 4), and
// shared experts' outputs behind the sigmoid of a gate (Qwen3-Next).

#include "kernels/device.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

// What a row is multiplied with, and the gradient of what that was made of.
struct Number {
  const float* numbers;
  float* gradients;  // null forward
  __device__ float of(std::int64_t row) const { return numbers[row]; }
  __device__ void give(std::int64_t row, float sum) const { gradients[row] = sum; }
};
struct Gate {
  const bf16* gates;
  bf16* gradients;
  __device__ float of(std::int64_t row) const { return sigmoid(static_cast<float>(gates[row])); }
  __device__ void give(std::int64_t row, float sum) const {
    const float share = of(row);
    gradients[row] = __float2bfloat16_rn(sum * share * (1 - share));
  }
};

// A thread has a vector.
template <class By>
__global__ void __launch_bounds__(kThreads)
    scale_rows_kernel(bf16* y, const bf16* x, By by, std::int64_t rows, std::int64_t cols) {
  const std::int64_t i = thread_index() * kVector, row = i / cols;
  if (row >= rows) return;
  const float number = by.of(row);
  Vector v = load(x + i);
#pragma unroll
  for (int j = 0; j < kVector; ++j) v.x[j] *= number;
  store(y + i, v);
}

// One warp a row, for the sum over its columns.
template <class By>
__global__ void __launch_bounds__(kThreads)
    scale_rows_backward_kernel(bf16* dx, const bf16* dy, const bf16* x, By by, std::int64_t rows,
                               std::int64_t cols) {
  const std::int64_t row = thread_index() / kWarp;
  if (row >= rows) return;
  const float number = by.of(row);
  float sum = 0;
#pragma unroll 4
  for (std::int64_t c = threadIdx.x % kWarp * kVector; c < cols; c += kWarp * kVector) {
    const Vector v = load(x + row * cols + c);
    Vector g = load(dy + row * cols + c);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      sum += g.x[j] * v.x[j];
      g.x[j] *= number;
    }
    store(dx + row * cols + c, g);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) by.give(row, sum);
}

template <class By>
void scale(bf16* y, const bf16* x, By by, std::int64_t rows, std::int64_t cols,
           cudaStream_t stream) {
  scale_rows_kernel<<<blocks_for(rows * cols / kVector), kThreads, 0, stream>>>(y, x, by, rows,
                                                                                cols);
}

template <class By>
void scale_backward(bf16* dx, const bf16* dy, const bf16* x, By by, std::int64_t rows,
                    std::int64_t cols, cudaStream_t stream) {
  scale_rows_backward_kernel<<<blocks_for(rows * kWarp), kThreads, 0, stream>>>(dx, dy, x, by, rows,
                                                                                cols);
}

}  // namespace

void scale_rows(bf16* y, const bf16* x, const float* numbers, std::int64_t rows, std::int64_t cols,
                cudaStream_t stream) {
  scale(y, x, Number{numbers, nullptr}, rows, cols, stream);
}

void scale_rows_backward(bf16* dx, float* dnumbers, const bf16* dy, const bf16* x,
                         const float* numbers, std::int64_t rows, std::int64_t cols,
                         cudaStream_t stream) {
  scale_backward(dx, dy, x, Number{numbers, dnumbers}, rows, cols, stream);
}

void gate_rows(bf16* y, const bf16* x, const bf16* gates, std::int64_t rows, std::int64_t cols,
               cudaStream_t stream) {
  scale(y, x, Gate{gates, nullptr}, rows, cols, stream);
}

void gate_rows_backward(bf16* dx, bf16* dgates, const bf16* dy, const bf16* x, const bf16* gates,
                        std::int64_t rows, std::int64_t cols, cudaStream_t stream) {
  scale_backward(dx, dy, x, Gate{gates, dgates}, rows, cols, stream);
}

}  // namespace qplan::kernels
