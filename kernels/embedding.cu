// Table lookup and its gradient; learned positions are a second table.

#include "kernels/device.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

// One block a token.
__global__ void __launch_bounds__(kThreads)
    embed_kernel(bf16* y, std::int64_t* kept, const bf16* table, std::int64_t first_row,
                 std::int64_t table_rows, const std::int32_t* ids, LearnedPositions positions,
                 std::int64_t cols) {
  const std::int64_t token = blockIdx.x;
  const std::int64_t id = ids[token], row = id - first_row;
  if (threadIdx.x == 0) kept[token] = id;
  const bool here = row >= 0 && row < table_rows;
  for (std::int64_t c = threadIdx.x * kVector; c < cols; c += kThreads * kVector) {
    uint4 bits{};
    if (here) bits = load_bits(table + row * cols + c);
    Vector sum = numbers_of(bits);
    if (positions.table != nullptr) {
      const Vector place = load(positions.table + positions.position[token] * cols + c);
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum.x[j] += place.x[j];
    }
    store(y + token * cols + c, sum);
  }
}

// One block a token; it works only if no token before it has the same id, and then adds all that
// do. Tokens are read from the cache: n^2 / 2 comparisons, 4 or 8 bytes each.
template <class Id>
__global__ void __launch_bounds__(kThreads)
    embed_backward_kernel(float* dtable, const bf16* dy, std::int64_t first_row,
                          std::int64_t table_rows, const Id* ids, std::int64_t n,
                          std::int64_t cols) {
  const std::int64_t token = blockIdx.x;
  const std::int64_t id = ids[token], row = id - first_row;
  if (row < 0 || row >= table_rows) return;
  bool seen = false;
  for (std::int64_t i = threadIdx.x; i < token; i += kThreads) seen |= ids[i] == id;
  if (__syncthreads_or(seen)) return;

  float* to = dtable + row * cols;
  for (std::int64_t begin = token; begin < n; begin += kThreads) {
    // Which of the next tokens are equal: every thread looks at one, everybody learns of all.
    __shared__ bool equal[kThreads];
    const std::int64_t mine = begin + threadIdx.x;
    const bool same = mine < n && ids[mine] == id;
    equal[threadIdx.x] = same;
    if (!__syncthreads_or(same)) continue;
    for (int i = 0; i < kThreads; ++i) {
      if (!equal[i]) continue;
      for (std::int64_t c = threadIdx.x * kVector; c < cols; c += kThreads * kVector) {
        const Vector v = load(dy + (begin + i) * cols + c);
#pragma unroll
        for (int j = 0; j < kVector; ++j) to[c + j] += v.x[j];
      }
    }
    __syncthreads();
  }
}

}  // namespace

void embed(bf16* y, std::int64_t* kept, const bf16* table, std::int64_t first_row,
           std::int64_t table_rows, const std::int32_t* ids, const LearnedPositions& positions,
           std::int64_t n, std::int64_t cols, cudaStream_t stream) {
  embed_kernel<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(y, kept, table, first_row,
                                                                  table_rows, ids, positions, cols);
}

void embed_backward(float* dtable, const bf16* dy, std::int64_t first_row, std::int64_t table_rows,
                    const std::int64_t* ids, std::int64_t n, std::int64_t cols,
                    cudaStream_t stream) {
  embed_backward_kernel<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(
      dtable, dy, first_row, table_rows, ids, n, cols);
}

void positions_backward(float* dtable, const bf16* dy, const std::int32_t* position,
                        std::int64_t table_rows, std::int64_t n, std::int64_t cols,
                        cudaStream_t stream) {
  embed_backward_kernel<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(
      dtable, dy, 0, table_rows, position, n, cols);
}

}  // namespace qplan::kernels
