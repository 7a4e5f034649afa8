// LayerNorm of rows (arXiv 1607.06450): a block has one row at a time and keeps it in registers.

#include "kernels/kernels.h"
#include "kernels/rows.cuh"

namespace qplan::kernels {
namespace {

constexpr std::int64_t kRowsOfBlock = 4;  // at least: else sums of gradients are as much as rows

// A thread's vectors of a row.
template <int Row>
__device__ std::int64_t column(int i) {
  return (std::int64_t{i} * Row + threadIdx.x) * kVector;
}

template <int Row, int Vectors>
__global__ void __launch_bounds__(Row)
    layer_norm_kernel(bf16* y, const bf16* x, LayerNormWeights p, std::int64_t cols, float eps) {
  const bf16* from = x + blockIdx.x * cols;
  Vector v[Vectors];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    if (column<Row>(i) >= cols) continue;
    v[i] = load(from + column<Row>(i));
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum += v[i].x[j];
  }
  const float mean = row_sum<Row>(sum) / static_cast<float>(cols);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    if (column<Row>(i) >= cols) continue;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      v[i].x[j] -= mean;
      squares += v[i].x[j] * v[i].x[j];
    }
  }
  const float scale = rsqrtf(row_sum<Row>(squares) / static_cast<float>(cols) + eps);
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    const std::int64_t c = column<Row>(i);
    if (c >= cols) continue;
    const Vector weight = load(p.weight + c), bias = load(p.bias + c);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      v[i].x[j] = v[i].x[j] * scale * (p.centre + weight.x[j]) + bias.x[j];
    }
    store(y + blockIdx.x * cols + c, v[i]);
  }
}

// Each block walks pieces of rows that it draws and leaves its sums of dy n and of dy in
// parts[block, :], side by side.
template <int Row, int Vectors>
__global__ void __launch_bounds__(Row)
    layer_norm_backward_kernel(LayerNormBackward o, float* parts, std::int64_t rows,
                               std::int64_t cols, float eps, int which_draw) {
  const auto count = static_cast<float>(cols);
  __shared__ int drawn;
  DrawnPieces pieces(which_draw, &drawn);
  Vector dw[Vectors] = {}, db[Vectors] = {};
  std::int64_t following = 0;
  int turn = 0;
  for (std::int64_t r = blockIdx.x * DrawnPieces::kTurns; r < rows; r = following, ++turn) {
    const bool first_turn = turn % DrawnPieces::kTurns == 0;
    following = first_turn ? r + 1 : pieces.next() * DrawnPieces::kTurns;
    if (first_turn && turn > 0) pieces.look_ahead();
    uint4 x[Vectors], dy[Vectors];
    float2 first{0, 0};  // of x, and of g = dy w
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const std::int64_t c = column<Row>(i);
      if (c >= cols) continue;
      x[i] = load_bits(o.x + r * cols + c);
      dy[i] = load_bits(o.dy + r * cols + c);
      const Vector value = numbers_of(x[i]), g = numbers_of(dy[i]), w = load(o.p.weight + c);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        first.x += value.x[j];
        first.y += g.x[j] * (o.p.centre + w.x[j]);
      }
    }
    first = row_sums<Row>(first, 0);
    const float mean = first.x / count, mean_g = first.y / count;
    float2 second{0, 0};  // of (x - mean)^2, and of g (x - mean)
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const std::int64_t c = column<Row>(i);
      if (c >= cols) continue;
      const Vector value = numbers_of(x[i]), g = numbers_of(dy[i]), w = load(o.p.weight + c);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float d = value.x[j] - mean;
        second.x += d * d;
        second.y += g.x[j] * (o.p.centre + w.x[j]) * d;
      }
    }
    second = row_sums<Row>(second, 1);
    if constexpr (Row <= kWarp) __syncthreads();  // as in the sums of longer rows
    const float scale = rsqrtf(second.x / count + eps);
    const float mean_gn = second.y * scale / count;
#pragma unroll
    for (int i = 0; i < Vectors; ++i) {
      const std::int64_t c = column<Row>(i);
      if (c >= cols) continue;
      const Vector value = numbers_of(x[i]), g = numbers_of(dy[i]), w = load(o.p.weight + c);
      Vector out = {};
      if (o.residual != nullptr) out = load(o.residual + r * cols + c);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float normed = (value.x[j] - mean) * scale;
        dw[i].x[j] += g.x[j] * normed;
        db[i].x[j] += g.x[j];
        out.x[j] += scale * (g.x[j] * (o.p.centre + w.x[j]) - mean_g - normed * mean_gn);
      }
      store(o.dx + r * cols + c, out);
    }
  }
  pieces.end();
  float* own = parts + blockIdx.x * 2 * cols;
#pragma unroll
  for (int i = 0; i < Vectors; ++i) {
    const std::int64_t c = column<Row>(i);
    if (c >= cols) continue;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      own[c + j] = dw[i].x[j];
      own[cols + c + j] = db[i].x[j];
    }
  }
}

template <class Launch>
void with_shape(std::int64_t cols, Launch launch) {
  if (cols <= 256) return launch(Shape<kWarp, 1, kWarp>{});
  with_block_shape(cols, launch);
}
// Sums of two gradients leave no registers for more vectors a thread.
template <class Launch>
void with_backward_shape(std::int64_t cols, Launch launch) {
  if (cols <= 256) return launch(Shape<kWarp, 1, kWarp, 16>{});
  if (cols <= 1024) return launch(Shape<128, 1, 128, 4>{});
  if (cols <= 2048) return launch(Shape<256, 1, 256, 2>{});
  if (cols <= 4096) return launch(Shape<256, 2, 256, 2>{});
  if (cols <= 8192) return launch(Shape<512, 2, 512, 1>{});
  launch(Shape<512, 4, 512, 1>{});
}

}  // namespace

void layer_norm(bf16* y, const bf16* x, const LayerNormWeights& weights, std::int64_t rows,
                std::int64_t cols, float eps, cudaStream_t stream) {
  with_shape(cols, [&](auto shape) {
    using S = decltype(shape);
    layer_norm_kernel<S::kRow, S::kVectors>
        <<<static_cast<unsigned>(rows), S::kRow, 0, stream>>>(y, x, weights, cols, eps);
  });
}

void layer_norm_backward(const LayerNormBackward& operands, std::int64_t rows, std::int64_t cols,
                         float eps, float* scratch, cudaStream_t stream, RowOrder order) {
  with_backward_shape(cols, [&](auto shape) {
    using S = decltype(shape);
    const std::int64_t wanted = ceil_div(rows, kRowsOfBlock);
    const std::int64_t most = kMultiprocessors * S::kBlocks;
    const std::int64_t blocks = wanted < most ? wanted : most;
    const int draw = draw_of(order);
    layer_norm_backward_kernel<S::kRow, S::kVectors>
        <<<static_cast<unsigned>(blocks), S::kRow, 0, stream>>>(operands, scratch, rows, cols, eps,
                                                                draw);
    if (operands.dw == nullptr) return;
    add_parts(operands.dw, scratch, blocks, cols, 2 * cols, stream);
    add_parts(operands.db, scratch + cols, blocks, cols, 2 * cols, stream);
  });
}

}  // namespace qplan::kernels
