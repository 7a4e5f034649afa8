// Rows times the sigmoid of a gate, a number for each of theirs or one for the whole row; and
// copies of heads between rows that hold others besides.

#include "kernels/kernels.h"
#include "kernels/rows.cuh"

namespace qplan::kernels {
namespace {

__global__ void __launch_bounds__(kThreads)
    gate_kernel(bf16* y, const bf16* x, const bf16* gate, std::int64_t n) {
  const std::int64_t i = thread_index() * kVector;
  if (i >= n) return;
  Vector v = load(x + i);
  const Vector g = load(gate + i);
#pragma unroll
  for (int j = 0; j < kVector; ++j) v.x[j] *= sigmoid(g.x[j]);
  store(y + i, v);
}

__global__ void __launch_bounds__(kThreads)
    gate_backward_kernel(bf16* dx, bf16* dgate, const bf16* dy, const bf16* x, const bf16* gate,
                         std::int64_t n) {
  const std::int64_t i = thread_index() * kVector;
  if (i >= n) return;
  Vector d = load(dy + i), g = load(gate + i);
  const Vector v = load(x + i);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float share = sigmoid(g.x[j]);
    g.x[j] = d.x[j] * v.x[j] * share * (1 - share);
    d.x[j] *= share;
  }
  store(dx + i, d);
  store(dgate + i, g);
}

__global__ void __launch_bounds__(kThreads)
    copy_lines_kernel(bf16* y, Lines y_lines, const bf16* x, Lines x_lines, std::int64_t rows,
                      std::int64_t cols) {
  const std::int64_t i = thread_index() * kVector, row = i / cols, c = i % cols;
  if (row >= rows) return;
  *reinterpret_cast<uint4*>(y + place(row, y_lines, cols) + c) =
      load_bits(x + place(row, x_lines, cols) + c);
}

}  // namespace

void gate(bf16* y, const bf16* x, const bf16* gates, std::int64_t n, cudaStream_t stream) {
  gate_kernel<<<blocks_for(n / kVector), kThreads, 0, stream>>>(y, x, gates, n);
}

void gate_backward(bf16* dx, bf16* dgates, const bf16* dy, const bf16* x, const bf16* gates,
                   std::int64_t n, cudaStream_t stream) {
  gate_backward_kernel<<<blocks_for(n / kVector), kThreads, 0, stream>>>(dx, dgates, dy, x, gates,
                                                                         n);
}

void copy_lines(bf16* y, Lines y_lines, const bf16* x, Lines x_lines, std::int64_t rows,
                std::int64_t cols, cudaStream_t stream) {
  copy_lines_kernel<<<blocks_for(rows * cols / kVector), kThreads, 0, stream>>>(
      y, y_lines, x, x_lines, rows, cols);
}

}  // namespace qplan::kernels
