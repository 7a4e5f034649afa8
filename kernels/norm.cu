// RMSNorm of rows. `Row` threads share a row and keep it in registers; short rows (heads of queries
// and keys) share a block.

#include "kernels/kernels.h"
#include "kernels/rows.cuh"

namespace qplan::kernels {
namespace {

constexpr std::int64_t kRowsOfBlock = 4;  // at least, of each row's threads

template <int Row, int Vectors, int Threads>
__global__ void __launch_bounds__(Threads)
    rms_norm_kernel(bf16* y, Lines y_lines, const bf16* x, Lines x_lines, const bf16* w,
                    std::int64_t rows, std::int64_t cols, float eps, float centre) {
  const std::int64_t r = std::int64_t{blockIdx.x} * (Threads / Row) + threadIdx.x / Row;
  const int lane = threadIdx.x % Row;
  const std::int64_t width = r < rows ? cols : 0;  // rows share a warp: all threads stay
  const bf16* from = x + place(r, x_lines, cols);
  Vector v[Vectors];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    const std::int64_t c = (std::int64_t{i} * Row + lane) * kVector;
    if (c >= width) continue;
    v[i] = load(from + c);
#pragma unroll
    for (int j = 0; j < kVector; ++j) squares += v[i].x[j] * v[i].x[j];
  }
  const float scale = rsqrtf(row_sum<Row>(squares) / static_cast<float>(cols) + eps);
  bf16* to = y + place(r, y_lines, cols);
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    const std::int64_t c = (std::int64_t{i} * Row + lane) * kVector;
    if (c >= width) continue;
    const Vector weight = load(w + c);
#pragma unroll
    for (int j = 0; j < kVector; ++j) v[i].x[j] *= scale * (centre + weight.x[j]);
    store(to + c, v[i]);
  }
}

// What a thread reads of a row, as it lies in memory.
template <int Vectors>
struct RowBits {
  uint4 x[Vectors], dy[Vectors], residual[Vectors];
};

// Each block walks pieces of rows that it draws, the next row's reads under way, and leaves its sum
// of dy n in parts[block, :].
template <int Row, int Vectors, int Threads, int Blocks>
__global__ void __launch_bounds__(Threads, Blocks)
    rms_norm_backward_kernel(NormBackward o, float* parts, std::int64_t rows, std::int64_t cols,
                             float eps, int which_draw) {
  constexpr int kRows = Threads / Row;
  __shared__ int drawn;
  DrawnPieces pieces(which_draw, &drawn);
  const int lane = threadIdx.x % Row;
  const auto column = [&](int i) { return (std::int64_t{i} * Row + lane) * kVector; };
  const auto read = [&](std::int64_t r, RowBits<Vectors>& bits) {
    const bf16* x_row = o.x + place(r, o.x_lines, cols);
    const bf16* dy_row = o.dy + place(r, o.dy_lines, cols);
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const std::int64_t c = column(i);
      if (r >= rows || c >= cols) continue;
      bits.x[i] = load_bits(x_row + c);
      bits.dy[i] = load_bits(dy_row + c);
      if (o.residual != nullptr) bits.residual[i] = load_bits(o.residual + r * cols + c);
    }
  };
  Vector weight[Vectors], sums[Vectors] = {};
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    if (column(i) >= cols) continue;
    weight[i] = load(o.w + column(i));
#pragma unroll
    for (int j = 0; j < kVector; ++j) weight[i].x[j] += o.centre;
  }
  constexpr std::int64_t kPiece = kRows * DrawnPieces::kTurns;
  RowBits<Vectors> next;
  std::int64_t first = blockIdx.x * kPiece, following = 0;
  read(first + threadIdx.x / Row, next);
  // Rows share a warp: all threads of a block take as many turns.
  for (int turn = 0; first < rows; ++turn, first = following) {
    const std::int64_t r = first + threadIdx.x / Row;
    const RowBits<Vectors> bits = next;
    const int parity = turn % DrawnPieces::kTurns;
    following = parity == 0 ? first + kRows : pieces.next() * kPiece;
    if (parity == 0 && turn > 0) pieces.look_ahead();
    read(following + threadIdx.x / Row, next);
    const std::int64_t width = r < rows ? cols : 0;
    float2 both{0, 0};  // squares, and dy w x
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      if (column(i) >= width) continue;
      const Vector n = numbers_of(bits.x[i]), g = numbers_of(bits.dy[i]);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        both.x += n.x[j] * n.x[j];
        both.y += g.x[j] * weight[i].x[j] * n.x[j];
      }
    }
    both = row_sums<Row>(both, parity);
    if constexpr (Row <= kWarp) __syncthreads();  // as in the sums of longer rows
    const float scale = rsqrtf(both.x / static_cast<float>(cols) + eps);
    const float mean = both.y * scale / static_cast<float>(cols);  // of g w n
    bf16* to = o.dx + place(r, o.dx_lines, cols);
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      if (column(i) >= width) continue;
      const Vector n = numbers_of(bits.x[i]), g = numbers_of(bits.dy[i]);
      Vector out = {};
      if (o.residual != nullptr) out = numbers_of(bits.residual[i]);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float normed = n.x[j] * scale;
        sums[i].x[j] += g.x[j] * normed;
        out.x[j] += scale * (g.x[j] * weight[i].x[j] - normed * mean);
      }
      store(to + column(i), out);
    }
  }
  pieces.end();
  // The rows of a block that ran side by side are added up, the first of them last.
  __shared__ float shared[kRows > 1 ? kRows * Row * kVector * Vectors : 1];
  if constexpr (kRows > 1) {
    constexpr int kWidth = Row * kVector * Vectors;
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        shared[threadIdx.x / Row * kWidth + (i * Row + lane) * kVector + j] = sums[i].x[j];
      }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < cols; c += Threads) {
      float sum = 0;
      for (int row = 0; row < kRows; ++row) sum += shared[row * kWidth + c];
      parts[blockIdx.x * cols + c] = sum;
    }
  } else {
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      if (column(i) >= cols) continue;
#pragma unroll
      for (int j = 0; j < kVector; ++j) parts[blockIdx.x * cols + column(i) + j] = sums[i].x[j];
    }
  }
}

template <class Launch>
void with_shape(std::int64_t cols, Launch launch) {
  if (cols <= 256) return with_head_shape(cols, launch);
  with_block_shape(cols, launch);
}
// A row's reads of x, dy and the residual, twice, its weights and sums: 40 registers a vector.
template <class Launch>
void with_backward_shape(std::int64_t cols, Launch launch) {
  if (cols <= 256) return with_head_shape(cols, launch);
  if (cols <= 512) return launch(Shape<64, 1, 64, 8>{});
  if (cols <= 1024) return launch(Shape<64, 2, 64, 8>{});
  if (cols <= 2048) return launch(Shape<128, 2, 128, 4>{});
  if (cols <= 3072) return launch(Shape<128, 3, 128, 3>{});
  if (cols <= 4096) return launch(Shape<256, 2, 256, 2>{});
  if (cols <= 5120) return launch(Shape<128, 5, 128, 2>{});
  if (cols <= 6144) return launch(Shape<128, 6, 128, 2>{});
  if (cols <= 8192) return launch(Shape<256, 4, 256, 1>{});
  if (cols <= 12288) return launch(Shape<256, 6, 256, 1>{});
  launch(Shape<256, 8, 256, 1>{});
}

// dw[c] += the sum of parts[:, c]; 32 columns a block, a warp reads every 32nd row of parts.
__global__ void __launch_bounds__(kWarp* kWarp)
    add_parts_kernel(float* dw, const float* parts, std::int64_t count, std::int64_t cols,
                     std::int64_t stride) {
  __shared__ float sums[kWarp][kWarp + 1];
  const std::int64_t c = std::int64_t{blockIdx.x} * kWarp + threadIdx.x;
  float sum = 0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.y; i < count; i += kWarp) {
    if (c < cols) sum += parts[i * stride + c];
  }
  sums[threadIdx.x][threadIdx.y] = sum;
  __syncthreads();
  sum = warp_sum(sums[threadIdx.y][threadIdx.x]);  // of column threadIdx.y
  const std::int64_t own = std::int64_t{blockIdx.x} * kWarp + threadIdx.y;
  if (threadIdx.x == 0 && own < cols) dw[own] += sum;
}

}  // namespace

void add_parts(float* dw, const float* parts, std::int64_t count, std::int64_t cols,
               std::int64_t stride, cudaStream_t stream) {
  add_parts_kernel<<<static_cast<unsigned>(ceil_div(cols, kWarp)), dim3(kWarp, kWarp), 0, stream>>>(
      dw, parts, count, cols, stride);
}

void rms_norm(bf16* y, Lines y_lines, const bf16* x, Lines x_lines, const bf16* w,
              std::int64_t rows, std::int64_t cols, float eps, cudaStream_t stream, float centre) {
  with_shape(cols, [&](auto shape) {
    using S = decltype(shape);
    const auto blocks = static_cast<unsigned>(ceil_div(rows, S::kThreads / S::kRow));
    rms_norm_kernel<S::kRow, S::kVectors, S::kThreads>
        <<<blocks, S::kThreads, 0, stream>>>(y, y_lines, x, x_lines, w, rows, cols, eps, centre);
  });
}

void rms_norm_backward(const NormBackward& operands, std::int64_t rows, std::int64_t cols,
                       float eps, float* scratch, cudaStream_t stream, RowOrder order) {
  with_backward_shape(cols, [&](auto shape) {
    using S = decltype(shape);
    // A block that has few rows would write as much of its sums as it reads.
    const std::int64_t wanted = ceil_div(rows, S::kThreads / S::kRow * kRowsOfBlock);
    const std::int64_t most = kMultiprocessors * S::kBlocks;
    const std::int64_t blocks = wanted < most ? wanted : most;
    const int draw = draw_of(order);
    rms_norm_backward_kernel<S::kRow, S::kVectors, S::kThreads, S::kBlocks>
        <<<static_cast<unsigned>(blocks), S::kThreads, 0, stream>>>(operands, scratch, rows, cols,
                                                                    eps, draw);
    if (operands.dw != nullptr) add_parts(operands.dw, scratch, blocks, cols, cols, stream);
  });
}

}  // namespace qplan::kernels
