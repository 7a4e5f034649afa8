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

// Which of n tokens have a row of the table: the first of them, and how many others there are.
struct RowTokens {
  unsigned first;
  int others;
};
static_assert(sizeof(RowTokens) == kTableRowScratch);

template <class Id>
__global__ void __launch_bounds__(kThreads)
    find_rows_kernel(RowTokens* found, std::int64_t first_row, std::int64_t table_rows,
                     const Id* ids, std::int64_t n) {
  const std::int64_t token = thread_index();
  if (token >= n) return;
  const std::int64_t row = ids[token] - first_row;
  if (row < 0 || row >= table_rows) return;
  atomicMin(&found[row].first, static_cast<unsigned>(token));
  atomicAdd(&found[row].others, 1);
}

constexpr int kAdders = 128;               // threads of a block that adds rows up
constexpr int kAdded = kAdders * kVector;  // columns of it
constexpr int kLooks = 4;                  // tokens that each of its threads looks at, at once
constexpr int kLooked = kLooks * kAdders;  // ... and all
constexpr int kMasks = kLooked / kWarp;

// Those of tokens [begin, begin + kLooked) that have the row, in rising order: into `list`, which
// all threads may read then. Returns how many.
template <class Id>
__device__ int list_tokens(int* list, unsigned* masks, const Id* ids, std::int64_t id,
                           std::int64_t begin, std::int64_t n) {
  __syncthreads();  // the list before has been read
  unsigned mine[kLooks];
#pragma unroll
  for (int i = 0; i < kLooks; ++i) {
    const std::int64_t token = begin + i * kAdders + threadIdx.x;
    mine[i] = __ballot_sync(0xffffffffU, token < n && ids[token] == id);
    if (threadIdx.x % kWarp == 0) masks[(i * kAdders + threadIdx.x) / kWarp] = mine[i];
  }
  __syncthreads();
  int place[kLooks] = {}, count = 0;
  for (int m = 0; m < kMasks; ++m) {
#pragma unroll
    for (int i = 0; i < kLooks; ++i) {
      if (m == (i * kAdders + static_cast<int>(threadIdx.x)) / kWarp) place[i] = count;
    }
    count += __popc(masks[m]);
  }
  const unsigned lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kLooks; ++i) {
    if ((mine[i] >> lane & 1) == 0) continue;
    list[place[i] + __popc(mine[i] & ((1U << lane) - 1))] =
        static_cast<int>(begin) + i * kAdders + static_cast<int>(threadIdx.x);
  }
  __syncthreads();
  return count;
}

// A block a token and kAdded columns. It works only if the token is the first that has its row, and
// then adds up all that do, in their order.
template <class Id>
__global__ void __launch_bounds__(kAdders)
    add_rows_kernel(float* dtable, const bf16* dy, const RowTokens* found, std::int64_t first_row,
                    std::int64_t table_rows, const Id* ids, std::int64_t n, std::int64_t cols) {
  const std::int64_t token = blockIdx.x, id = ids[token], row = id - first_row;
  if (row < 0 || row >= table_rows) return;
  const RowTokens all = found[row];
  if (all.first != static_cast<unsigned>(token)) return;
  const std::int64_t c = std::int64_t{blockIdx.y} * kAdded + threadIdx.x * kVector;
  const bool inside = c < cols;
  Vector sum{};
  if (inside) sum = load(dy + token * cols + c);
  __shared__ int list[kLooked];
  __shared__ unsigned masks[kMasks];
  std::int64_t begin = token + 1;
  for (int left = all.others; left > 0; begin += kLooked) {
    const int count = list_tokens(list, masks, ids, id, begin, n);
    left -= count;
    if (!inside) continue;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const Vector v = load(dy + list[i] * cols + c);
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum.x[j] += v.x[j];
    }
  }
  if (!inside) return;
  auto* to = reinterpret_cast<float4*>(dtable + row * cols + c);
  const float4 low = to[0], high = to[1];
  to[0] = {low.x + sum.x[0], low.y + sum.x[1], low.z + sum.x[2], low.w + sum.x[3]};
  to[1] = {high.x + sum.x[4], high.y + sum.x[5], high.z + sum.x[6], high.w + sum.x[7]};
}

template <class Id>
void add_rows(float* dtable, const bf16* dy, std::int64_t first_row, std::int64_t table_rows,
              const Id* ids, std::int64_t n, std::int64_t cols, void* scratch,
              cudaStream_t stream) {
  auto* const found = static_cast<RowTokens*>(scratch);
  // No token is the first, and others begin at -1: the first is none of them.
  cudaMemsetAsync(found, 0xff, static_cast<std::size_t>(table_rows) * sizeof(RowTokens), stream);
  find_rows_kernel<<<blocks_for(n), kThreads, 0, stream>>>(found, first_row, table_rows, ids, n);
  const dim3 blocks(static_cast<unsigned>(n), static_cast<unsigned>(ceil_div(cols, kAdded)));
  add_rows_kernel<<<blocks, kAdders, 0, stream>>>(dtable, dy, found, first_row, table_rows, ids, n,
                                                  cols);
}

}  // namespace

void embed(bf16* y, std::int64_t* kept, const bf16* table, std::int64_t first_row,
           std::int64_t table_rows, const std::int32_t* ids, const LearnedPositions& positions,
           std::int64_t n, std::int64_t cols, cudaStream_t stream) {
  embed_kernel<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(y, kept, table, first_row,
                                                                  table_rows, ids, positions, cols);
}

void embed_backward(float* dtable, const bf16* dy, std::int64_t first_row, std::int64_t table_rows,
                    const std::int64_t* ids, std::int64_t n, std::int64_t cols, void* scratch,
                    cudaStream_t stream) {
  add_rows(dtable, dy, first_row, table_rows, ids, n, cols, scratch, stream);
}

void positions_backward(float* dtable, const bf16* dy, const std::int32_t* position,
                        std::int64_t table_rows, std::int64_t n, std::int64_t cols, void* scratch,
                        cudaStream_t stream) {
  add_rows(dtable, dy, 0, table_rows, position, n, cols, scratch, stream);
}

}  // namespace qplan::kernels
