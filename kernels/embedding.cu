// Table lookup and its gradient; learned positions are a second table.

#include "kernels/device.cuh"
#include "kernels/kernels.h"
#include "kernels/sort.h"

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

// Of each token its row of the table, where another rank has it the one behind the last.
template <class Id>
__global__ void __launch_bounds__(kThreads)
    find_rows_kernel(std::uint32_t* rows, std::uint32_t* tokens, std::int64_t first_row,
                     std::int64_t table_rows, const Id* ids, std::int64_t n) {
  const std::int64_t token = thread_index();
  if (token >= n) return;
  const std::int64_t row = ids[token] - first_row;
  const bool here = row >= 0 && row < table_rows;
  rows[token] = static_cast<std::uint32_t>(here ? row : table_rows);
  tokens[token] = static_cast<std::uint32_t>(token);
}

constexpr int kAdders = 128;               // threads of a block that adds rows up
constexpr int kAdded = kAdders * kVector;  // columns of it
constexpr int kAtOnce = 8;                 // tokens that it reads at a time

// Tokens by row, and those of a row in their order. A block a place in that and kAdded columns: it
// works only if the place is the first of its row's, and then adds up all of them.
__global__ void __launch_bounds__(kAdders)
    add_rows_kernel(float* dtable, const bf16* dy, const std::uint32_t* rows,
                    const std::uint32_t* tokens, std::int64_t table_rows, std::int64_t n,
                    std::int64_t cols) {
  const std::int64_t first = blockIdx.x, row = rows[first];
  if (row == table_rows || (first > 0 && rows[first - 1] == row)) return;
  const std::int64_t c = std::int64_t{blockIdx.y} * kAdded + threadIdx.x * kVector;
  if (c >= cols) return;
  Vector sum{};
  bool more = true;
  for (std::int64_t begin = first; more; begin += kAtOnce) {
    std::int64_t from[kAtOnce];
    uint4 bits[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      more = begin + i < n && rows[begin + i] == row;
      from[i] = more ? std::int64_t{tokens[begin + i]} : -1;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (from[i] >= 0) bits[i] = load_bits(dy + from[i] * cols + c);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (from[i] < 0) continue;
      const Vector v = numbers_of(bits[i]);
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum.x[j] += v.x[j];
    }
  }
  auto* to = reinterpret_cast<float4*>(dtable + row * cols + c);
  const float4 low = to[0], high = to[1];
  to[0] = {low.x + sum.x[0], low.y + sum.x[1], low.z + sum.x[2], low.w + sum.x[3]};
  to[1] = {high.x + sum.x[4], high.y + sum.x[5], high.z + sum.x[6], high.w + sum.x[7]};
}

int bits_of(std::int64_t largest) {
  int bits = 0;
  while (largest >> bits > 0) ++bits;
  return bits;
}

template <class Id>
cudaError_t add_rows(float* dtable, const bf16* dy, std::int64_t first_row, std::int64_t table_rows,
                     const Id* ids, std::int64_t n, std::int64_t cols, void* scratch,
                     cudaStream_t stream) {
  auto* const arrays = static_cast<std::uint32_t*>(scratch);
  const SortArrays found{arrays, arrays + n}, sorted{arrays + 2 * n, arrays + 3 * n};
  find_rows_kernel<<<blocks_for(n), kThreads, 0, stream>>>(found.keys, found.values, first_row,
                                                           table_rows, ids, n);
  const auto rest = static_cast<std::size_t>(
      (kTokenScratch - 4 * static_cast<std::int64_t>(sizeof(std::uint32_t))) * n + kSortScratch);
  const cudaError_t error =
      sort_by_key(sorted, found, n, bits_of(table_rows), arrays + 4 * n, rest, stream);
  const dim3 blocks(static_cast<unsigned>(n), static_cast<unsigned>(ceil_div(cols, kAdded)));
  add_rows_kernel<<<blocks, kAdders, 0, stream>>>(dtable, dy, sorted.keys, sorted.values,
                                                  table_rows, n, cols);
  return error;
}

}  // namespace

void embed(bf16* y, std::int64_t* kept, const bf16* table, std::int64_t first_row,
           std::int64_t table_rows, const std::int32_t* ids, const LearnedPositions& positions,
           std::int64_t n, std::int64_t cols, cudaStream_t stream) {
  embed_kernel<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(y, kept, table, first_row,
                                                                  table_rows, ids, positions, cols);
}

cudaError_t embed_backward(float* dtable, const bf16* dy, std::int64_t first_row,
                           std::int64_t table_rows, const std::int64_t* ids, std::int64_t n,
                           std::int64_t cols, void* scratch, cudaStream_t stream) {
  return add_rows(dtable, dy, first_row, table_rows, ids, n, cols, scratch, stream);
}

cudaError_t positions_backward(float* dtable, const bf16* dy, const std::int32_t* position,
                               std::int64_t table_rows, std::int64_t n, std::int64_t cols,
                               void* scratch, cudaStream_t stream) {
  return add_rows(dtable, dy, 0, table_rows, position, n, cols, scratch, stream);
}

}  // namespace qplan::kernels
