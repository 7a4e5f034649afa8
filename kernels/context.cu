// Attention that was computed over some keys at a time: results put together.

#include "kernels/device.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

// log(exp(a) + exp(b)).
__device__ float log_add(float a, float b) {
  const float larger = fmaxf(a, b);
  return larger + log1pf(expf(fminf(a, b) - larger));
}

// A thread weights eight numbers of one head.
__global__ void __launch_bounds__(kThreads)
    merge_kernel(bf16* out, const float* log_sum, const bf16* part, const float* part_log_sum,
                 RowPart where, std::int64_t heads, std::int64_t dim) {
  const std::int64_t units = dim / kVector, i = thread_index();
  const std::int64_t unit = i % units, head = i / units % heads;
  const std::int64_t row = i / units / heads % where.count, b = i / units / heads / where.count;
  if (b >= where.batch) return;
  const std::int64_t whole_row = where.first + row;
  const float before = log_sum[(b * heads + head) * where.rows + whole_row];
  const float other = part_log_sum[(b * heads + head) * where.count + row];
  const float after = log_add(before, other);
  const float keep = expf(before - after), gain = expf(other - after);
  bf16* to = out + ((b * where.rows + whole_row) * heads + head) * dim + unit * kVector;
  Vector y = load(to);
  const Vector x = load(part + ((b * where.count + row) * heads + head) * dim + unit * kVector);
#pragma unroll
  for (int j = 0; j < kVector; ++j) y.x[j] = keep * y.x[j] + gain * x.x[j];
  store(to, y);
}

__global__ void __launch_bounds__(kThreads)
    merge_sums_kernel(float* log_sum, const float* part, RowPart where, std::int64_t heads) {
  const std::int64_t i = thread_index();
  const std::int64_t row = i % where.count, line = i / where.count;
  if (line >= where.batch * heads) return;
  float& whole = log_sum[line * where.rows + where.first + row];
  whole = log_add(whole, part[i]);
}

__global__ void __launch_bounds__(kThreads)
    add_rows_kernel(bf16* to, const bf16* part, RowPart where, std::int64_t cols) {
  const std::int64_t units = cols / kVector, i = thread_index();
  const std::int64_t unit = i % units, row = i / units % where.count, b = i / units / where.count;
  if (b >= where.batch) return;
  bf16* sum = to + (b * where.rows + where.first + row) * cols + unit * kVector;
  Vector y = load(sum);
  const Vector x = load(part + i * kVector);
#pragma unroll
  for (int j = 0; j < kVector; ++j) y.x[j] += x.x[j];
  store(sum, y);
}

}  // namespace

void merge_attention(const AttentionPart& whole, const AttentionPart& part, const RowPart& where,
                     std::int64_t heads, std::int64_t dim, cudaStream_t stream) {
  const std::int64_t lines = where.batch * where.count * heads;
  merge_kernel<<<blocks_for(lines * dim / kVector), kThreads, 0, stream>>>(
      whole.out, whole.log_sum, part.out, part.log_sum, where, heads, dim);
  merge_sums_kernel<<<blocks_for(lines), kThreads, 0, stream>>>(whole.log_sum, part.log_sum, where,
                                                                heads);
}

void add_rows(bf16* to, const bf16* part, const RowPart& where, std::int64_t cols,
              cudaStream_t stream) {
  const std::int64_t threads = where.batch * where.count * cols / kVector;
  add_rows_kernel<<<blocks_for(threads), kThreads, 0, stream>>>(to, part, where, cols);
}

}  // namespace qplan::kernels
