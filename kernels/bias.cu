// Biases of products that no library adds, and the gradients of all: sums over rows.

#include "kernels/kernels.h"
#include "kernels/rows.cuh"

namespace qplan::kernels {
namespace {

constexpr int kWarps = kThreads / kWarp;
constexpr int kTile = kWarp * kVector;  // columns that a block works on
static_assert(kTile == kThreads, "in the end a thread has a column");
constexpr std::int64_t kBlocks = 1056;   // of a sum over rows: eight a multiprocessor
constexpr std::int64_t kRowsOfWarp = 4;  // at least: else a block writes as much as it reads

// The sum of a thread's own column over rows first .. last - 1, each times its scale (null: 1): of
// every `step` rows the first kWarps, one a warp.
template <class T>
__device__ float column_sum(const T* x, const float* scale, std::int64_t first, std::int64_t last,
                            std::int64_t step, std::int64_t cols) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  const std::int64_t c = std::int64_t{blockIdx.x} * kTile + lane * kVector;
  Vector sum = {};
  for (std::int64_t r = first + warp; r < last && c < cols; r += step) {
    const Vector v = load(x + r * cols + c);
    const float by = scale != nullptr ? scale[r] : 1;
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum.x[j] += by * v.x[j];
  }
  __shared__ float sums[kWarps][kTile];
#pragma unroll
  for (int j = 0; j < kVector; ++j) sums[warp][lane * kVector + j] = sum.x[j];
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += sums[i][threadIdx.x];
  return total;
}

// parts[blockIdx.y, :] = sums over every gridDim.y-th eight rows.
template <class T>
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(float* parts, const T* x, std::int64_t rows, std::int64_t cols) {
  const float sum = column_sum<T>(x, nullptr, std::int64_t{blockIdx.y} * kWarps, rows,
                                  std::int64_t{gridDim.y} * kWarps, cols);
  const std::int64_t c = std::int64_t{blockIdx.x} * kTile + threadIdx.x;
  if (c < cols) parts[blockIdx.y * cols + c] = sum;
}

template <class T>
void add_column_sums(float* to, const T* x, std::int64_t rows, std::int64_t cols, float* scratch,
                     cudaStream_t stream) {
  const std::int64_t tiles = ceil_div(cols, kTile);
  const std::int64_t wanted = ceil_div(rows, kWarps * kRowsOfWarp), most = ceil_div(kBlocks, tiles);
  const std::int64_t parts = wanted < most ? wanted : most;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(parts));
  column_sums_kernel<<<grid, kThreads, 0, stream>>>(scratch, x, rows, cols);
  add_parts(to, scratch, parts, cols, cols, stream);
}

__global__ void __launch_bounds__(kThreads)
    add_bias_kernel(float* y, const bf16* bias, std::int64_t n, std::int64_t cols) {
  const std::int64_t i = thread_index();
  if (i < n) y[i] += static_cast<float>(bias[i % cols]);
}

struct RowRange {
  std::int64_t first, last;
};

// Rows of one group. For a whole block.
__device__ RowRange rows_of(const RowGroups& groups, int group) {
  int before = 0, own = 0;
  for (int i = static_cast<int>(threadIdx.x); i < groups.sources * (group + 1); i += kThreads) {
    const int source = i / (group + 1), other = i % (group + 1);
    const int rows = groups.rows[source * groups.source_stride + other];
    (other == group ? own : before) += rows;
  }
  before = block_sum<kThreads>(before);
  own = block_sum<kThreads>(own);
  return {before, std::int64_t{before} + own};
}

// A warp has every so many rows of a group, 256 columns of each.
__global__ void __launch_bounds__(kThreads)
    add_group_bias_kernel(bf16* y, const float* scale, GroupedWeights bias, RowGroups groups) {
  const RowRange rows = rows_of(groups, static_cast<int>(blockIdx.y));
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  const std::int64_t c = std::int64_t{blockIdx.x} * kTile + lane * kVector;
  if (c >= bias.out) return;
  const Vector b = load(bias.data + blockIdx.y * bias.stride + c);
  const std::int64_t step = std::int64_t{gridDim.z} * kWarps;
  for (std::int64_t r = rows.first + blockIdx.z * kWarps + warp; r < rows.last; r += step) {
    Vector v = load(y + r * bias.out + c);
    const float by = scale != nullptr ? scale[r] : 1;
#pragma unroll
    for (int j = 0; j < kVector; ++j) v.x[j] += by * b.x[j];
    store(y + r * bias.out + c, v);
  }
}

__global__ void __launch_bounds__(kThreads)
    group_bias_gradient_kernel(GroupedGradients to, const bf16* dy, const float* scale,
                               RowGroups groups) {
  const RowRange rows = rows_of(groups, static_cast<int>(blockIdx.y));
  const float sum = column_sum<bf16>(dy, scale, rows.first, rows.last, kWarps, to.out);
  const std::int64_t c = std::int64_t{blockIdx.x} * kTile + threadIdx.x;
  if (c < to.out) to.data[blockIdx.y * to.stride + c] += sum;
}

// A warp a row.
__global__ void __launch_bounds__(kThreads)
    group_bias_scale_kernel(float* dscale, const bf16* dy, GroupedWeights bias, RowGroups groups) {
  const RowRange rows = rows_of(groups, static_cast<int>(blockIdx.y));
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  const bf16* own = bias.data + blockIdx.y * bias.stride;
  const std::int64_t step = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t r = rows.first + blockIdx.x * kWarps + warp; r < rows.last; r += step) {
    float sum = 0;
    for (std::int64_t c = lane * kVector; c < bias.out; c += kTile) {
      const Vector d = load(dy + r * bias.out + c), b = load(own + c);
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum += d.x[j] * b.x[j];
    }
    sum = warp_sum(sum);
    if (lane == 0) dscale[r] += sum;
  }
}

// Blocks that share the rows of a group, so that all together are enough; there is room for `rows`.
unsigned sharers(std::int64_t blocks, std::int64_t rows) {
  const std::int64_t wanted = ceil_div(rows, kWarps * kRowsOfWarp),
                     most = ceil_div(kBlocks, blocks);
  return static_cast<unsigned>(wanted < most ? wanted : most);
}

}  // namespace

void add_bias(float* y, const bf16* bias, std::int64_t rows, std::int64_t cols,
              cudaStream_t stream) {
  const auto blocks = blocks_for(rows * cols);
  add_bias_kernel<<<blocks, kThreads, 0, stream>>>(y, bias, rows * cols, cols);
}

void bias_gradient(float* dbias, const bf16* dy, std::int64_t rows, std::int64_t cols,
                   float* scratch, cudaStream_t stream) {
  add_column_sums(dbias, dy, rows, cols, scratch, stream);
}

void bias_gradient(float* dbias, const float* dy, std::int64_t rows, std::int64_t cols,
                   float* scratch, cudaStream_t stream) {
  add_column_sums(dbias, dy, rows, cols, scratch, stream);
}

void add_group_bias(bf16* y, const float* scale, const GroupedWeights& bias,
                    const RowGroups& groups, std::int64_t rows, cudaStream_t stream) {
  const std::int64_t tiles = ceil_div(bias.out, kTile);
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(groups.count),
                  sharers(tiles * groups.count, rows));
  add_group_bias_kernel<<<grid, kThreads, 0, stream>>>(y, scale, bias, groups);
}

void group_bias_gradient(const GroupedGradients& dbias, const bf16* dy, const float* scale,
                         const RowGroups& groups, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(dbias.out, kTile)),
                  static_cast<unsigned>(groups.count));
  group_bias_gradient_kernel<<<grid, kThreads, 0, stream>>>(dbias, dy, scale, groups);
}

void group_bias_scale_gradient(float* dscale, const bf16* dy, const GroupedWeights& bias,
                               const RowGroups& groups, std::int64_t rows, cudaStream_t stream) {
  const dim3 grid(sharers(groups.count, rows), static_cast<unsigned>(groups.count));
  group_bias_scale_kernel<<<grid, kThreads, 0, stream>>>(dscale, dy, bias, groups);
}

}  // namespace qplan::kernels
