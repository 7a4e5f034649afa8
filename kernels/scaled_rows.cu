// Experts' rows times a number each, before the experts read them (Llama 4), and back.

#include "kernels/device.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

// A thread has a vector.
__global__ void __launch_bounds__(kThreads)
    scale_rows_kernel(bf16* y, const bf16* x, const float* numbers, std::int64_t rows,
                      std::int64_t cols) {
  const std::int64_t i = thread_index() * kVector, row = i / cols;
  if (row >= rows) return;
  const float by = numbers[row];
  Vector v = load(x + i);
#pragma unroll
  for (int j = 0; j < kVector; ++j) v.x[j] *= by;
  store(y + i, v);
}

// One warp a row, for the sum over its columns.
__global__ void __launch_bounds__(kThreads)
    scale_rows_backward_kernel(bf16* dx, float* dnumbers, const bf16* dy, const bf16* x,
                               const float* numbers, std::int64_t rows, std::int64_t cols) {
  const std::int64_t row = thread_index() / kWarp;
  if (row >= rows) return;
  const float by = numbers[row];
  float sum = 0;
#pragma unroll 4
  for (std::int64_t c = threadIdx.x % kWarp * kVector; c < cols; c += kWarp * kVector) {
    const Vector v = load(x + row * cols + c);
    Vector g = load(dy + row * cols + c);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      sum += g.x[j] * v.x[j];
      g.x[j] *= by;
    }
    store(dx + row * cols + c, g);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) dnumbers[row] = sum;
}

}  // namespace

void scale_rows(bf16* y, const bf16* x, const float* numbers, std::int64_t rows, std::int64_t cols,
                cudaStream_t stream) {
  scale_rows_kernel<<<blocks_for(rows * cols / kVector), kThreads, 0, stream>>>(y, x, numbers, rows,
                                                                                cols);
}

void scale_rows_backward(bf16* dx, float* dnumbers, const bf16* dy, const bf16* x,
                         const float* numbers, std::int64_t rows, std::int64_t cols,
                         cudaStream_t stream) {
  scale_rows_backward_kernel<<<blocks_for(rows * kWarp), kThreads, 0, stream>>>(
      dx, dnumbers, dy, x, numbers, rows, cols);
}

}  // namespace qplan::kernels
