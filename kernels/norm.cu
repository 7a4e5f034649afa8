// RMSNorm of rows. `Row` threads share a row and keep it in registers; short rows (heads of queries
// and keys) share a block.

#include "kernels/device.cuh"
#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

// Threads of the backward kernel at once, each summing its rows' weight gradients: what 132
// multiprocessors hold with its 78 registers, and with the 122 of several vectors a thread.
constexpr std::int64_t kBackwardThreads = 132 * 768, kWideBackwardThreads = 132 * 512;
constexpr std::int64_t kRowsOfBlock = 4;  // at least, of each row's threads

// The sum over the threads of a row: a part of a warp, a warp, or a block.
template <int Row>
__device__ float row_sum(float x) {
  if constexpr (Row > kWarp) {
    return block_sum<Row>(x);
  } else {
#pragma unroll
    for (int step = Row / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
    return x;
  }
}

// Where row r lies.
__device__ std::int64_t place(std::int64_t r, Lines lines, std::int64_t cols) {
  return r / lines.heads * lines.stride + r % lines.heads * cols;
}

template <int Row, int Vectors, int Threads>
__global__ void __launch_bounds__(Threads)
    rms_norm_kernel(bf16* y, Lines y_lines, const bf16* x, const bf16* w, std::int64_t rows,
                    std::int64_t cols, float eps) {
  const std::int64_t r = std::int64_t{blockIdx.x} * (Threads / Row) + threadIdx.x / Row;
  const int lane = threadIdx.x % Row;
  const std::int64_t width = r < rows ? cols : 0;  // rows share a warp: all threads stay
  const bf16* from = x + r * cols;
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
    for (int j = 0; j < kVector; ++j) v[i].x[j] *= scale * weight.x[j];
    store(to + c, v[i]);
  }
}

// A token's angles, of the 8 numbers of a head that a lane holds, and the lane that holds the
// numbers they turn with.
struct Angles {
  float cosine[kVector], sine[kVector];
  int other = 0;
  bool turns = false;
};
__device__ Angles angles_of(const Rotation& rotation, std::int64_t token, int lane, bool back) {
  const int half = static_cast<int>(rotation.turned) / 2, column = lane * kVector;
  const bool first = column < half;
  Angles a;
  a.turns = column < 2 * half;
  a.other = a.turns ? (first ? lane + half / kVector : lane - half / kVector) : lane;
  if (!a.turns) return a;
  const auto* pairs = reinterpret_cast<const float4*>(
      rotation.angles + rotation.position[token] * half + (first ? column : column - half));
#pragma unroll
  for (int j = 0; j < kVector / 2; ++j) {
    const float4 two = pairs[j];
    a.cosine[2 * j] = two.x;
    a.cosine[2 * j + 1] = two.z;
    a.sine[2 * j] = first == back ? two.y : -two.y;
    a.sine[2 * j + 1] = first == back ? two.w : -two.w;
  }
  return a;
}

// A head that `Row` lanes of a warp hold turns. All lanes take part.
template <int Row>
__device__ void turn_head(Vector& head, const Angles& a) {
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float partner = __shfl_sync(0xffffffffU, head.x[j], a.other, Row);
    if (a.turns) head.x[j] = head.x[j] * a.cosine[j] + partner * a.sine[j];
  }
}

// `Row` threads walk over a token's heads, kBatch of them under way: q and k are normed and turned,
// v is copied.
template <int Row, int Threads>
__global__ void __launch_bounds__(Threads)
    split_normed_kernel(PackedHeads h, Rotation rotation, HeadNorms norms) {
  constexpr int kBatch = 4, kGroups = Threads / Row;
  const int heads = static_cast<int>(h.q_heads + 2 * h.kv_heads);
  const int q_heads = static_cast<int>(h.q_heads), kv_heads = static_cast<int>(h.kv_heads);
  const int group = threadIdx.x / Row, lane = threadIdx.x % Row, column = lane * kVector;
  const std::int64_t row = blockIdx.x, d = h.head_dim;
  const bool inside = column < d;
  const Angles angles = angles_of(rotation, row, lane, /*back=*/false);
  const Vector q_weight = inside ? load(norms.q + column) : Vector{};
  const Vector k_weight = inside ? load(norms.k + column) : Vector{};
  // Heads share a warp: all threads take as many turns.
  for (int first = 0; first < heads; first += kGroups * kBatch) {
    uint4 bits[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int head = first + i * kGroups + group;
      bits[i] = uint4{};
      if (head < heads && inside) bits[i] = load_bits(h.packed + (row * heads + head) * d + column);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int head = first + i * kGroups + group;
      Vector v = numbers_of(bits[i]);
      float squares = 0;
#pragma unroll
      for (int j = 0; j < kVector; ++j) squares += v.x[j] * v.x[j];
      const float scale = rsqrtf(row_sum<Row>(squares) / static_cast<float>(d) + norms.eps);
      const bool is_q = head < q_heads, is_v = head >= q_heads + kv_heads;
#pragma unroll
      for (int j = 0; j < kVector; ++j) v.x[j] *= scale * (is_q ? q_weight.x[j] : k_weight.x[j]);
      turn_head<Row>(v, angles);
      if (head >= heads || !inside) continue;
      if (is_q) {
        store(h.q + (row * q_heads + head) * d + column, v);
      } else if (is_v) {
        bf16* to = h.v + (row * kv_heads + head - q_heads - kv_heads) * d + column;
        *reinterpret_cast<uint4*>(to) = bits[i];
      } else {
        store(h.k + (row * kv_heads + head - q_heads) * d + column, v);
      }
    }
  }
}

// Two sums over the threads of a row at once. `parity` alternates: what a slow warp still reads is
// not what a fast one writes next.
template <int Row>
__device__ float2 row_sums(float2 x, int parity) {
  constexpr int kLanes = Row < kWarp ? Row : kWarp;
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    x.x += __shfl_xor_sync(0xffffffffU, x.x, step);
    x.y += __shfl_xor_sync(0xffffffffU, x.y, step);
  }
  if constexpr (Row > kWarp) {
    __shared__ float2 parts[2][Row / kWarp];
    if (threadIdx.x % kWarp == 0) parts[parity][threadIdx.x / kWarp] = x;
    __syncthreads();
    x = {0, 0};
#pragma unroll
    for (int i = 0; i < Row / kWarp; ++i) {
      x.x += parts[parity][i].x;
      x.y += parts[parity][i].y;
    }
  }
  return x;
}

// The way back: `Row` threads walk over a token's heads, kBatch of them under way. A block takes
// every gridDim-th token and leaves its sums of dy n, of q and of k, in parts[block, :].
template <int Row, int Threads>
__global__ void __launch_bounds__(Threads)
    pack_normed_kernel(bf16* dpacked, float* parts, PackedHeads h, Rotation rotation,
                       HeadNorms norms) {
  constexpr int kBatch = 3, kGroups = Threads / Row;
  const int heads = static_cast<int>(h.q_heads + 2 * h.kv_heads);
  const int q_heads = static_cast<int>(h.q_heads), kv_heads = static_cast<int>(h.kv_heads);
  const int group = threadIdx.x / Row, lane = threadIdx.x % Row, column = lane * kVector;
  const std::int64_t d = h.head_dim;
  const bool inside = column < d;
  const Vector q_weight = inside ? load(norms.q + column) : Vector{};
  const Vector k_weight = inside ? load(norms.k + column) : Vector{};
  Vector q_sum = {}, k_sum = {};
  for (std::int64_t row = blockIdx.x; row < h.rows; row += gridDim.x) {
    const Angles angles = angles_of(rotation, row, lane, /*back=*/true);
    for (int first = 0; first < heads; first += kGroups * kBatch) {
      uint4 x_bits[kBatch], dy_bits[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int head = first + i * kGroups + group;
        x_bits[i] = dy_bits[i] = uint4{};
        if (head >= heads || !inside) continue;
        const bool is_q = head < q_heads, is_v = head >= q_heads + kv_heads;
        const bf16* dy = is_q   ? h.q + (row * q_heads + head) * d
                         : is_v ? h.v + (row * kv_heads + head - q_heads - kv_heads) * d
                                : h.k + (row * kv_heads + head - q_heads) * d;
        dy_bits[i] = load_bits(dy + column);
        if (!is_v) x_bits[i] = load_bits(h.packed + (row * heads + head) * d + column);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int head = first + i * kGroups + group;
        const bool is_q = head < q_heads, is_v = head >= q_heads + kv_heads;
        const Vector x = numbers_of(x_bits[i]);
        Vector g = numbers_of(dy_bits[i]);
        turn_head<Row>(g, angles);
        float2 both{0, 0};  // squares, and dy w x
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          both.x += x.x[j] * x.x[j];
          both.y += g.x[j] * (is_q ? q_weight.x[j] : k_weight.x[j]) * x.x[j];
        }
        both = row_sums<Row>(both, 0);
        const float scale = rsqrtf(both.x / static_cast<float>(d) + norms.eps);
        const float mean = both.y * scale / static_cast<float>(d);
        if (head >= heads || !inside) continue;
        bf16* to = dpacked + (row * heads + head) * d + column;
        if (is_v) {
          *reinterpret_cast<uint4*>(to) = dy_bits[i];
          continue;
        }
        Vector out;
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const float normed = x.x[j] * scale, own = g.x[j] * normed;
          q_sum.x[j] += is_q ? own : 0;
          k_sum.x[j] += is_q ? 0 : own;
          out.x[j] = scale * (g.x[j] * (is_q ? q_weight.x[j] : k_weight.x[j]) - normed * mean);
        }
        store(to, out);
      }
    }
  }
  // The groups' sums are added up, of q and then of k.
  __shared__ float shared[kGroups][2 * Row * kVector];
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    shared[group][column + j] = q_sum.x[j];
    shared[group][Row * kVector + column + j] = k_sum.x[j];
  }
  __syncthreads();
  for (int c = threadIdx.x; c < 2 * d; c += Threads) {
    const int at = c < d ? c : Row * kVector + c - static_cast<int>(d);
    float sum = 0;
    for (int i = 0; i < kGroups; ++i) sum += shared[i][at];
    parts[blockIdx.x * 2 * d + c] = sum;
  }
}

// What a thread reads of a row, as it lies in memory.
template <int Vectors>
struct RowBits {
  uint4 x[Vectors], dy[Vectors], residual[Vectors];
};

// Each block walks rows a grid apart, the next row's reads under way, and leaves its sum of dy n in
// parts[block, :].
template <int Row, int Vectors, int Threads>
__global__ void __launch_bounds__(Threads)
    rms_norm_backward_kernel(NormBackward o, float* parts, std::int64_t rows, std::int64_t cols,
                             float eps) {
  constexpr int kRows = Threads / Row;
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
    if (column(i) < cols) weight[i] = load(o.w + column(i));
  }
  const std::int64_t step = std::int64_t{gridDim.x} * kRows;
  std::int64_t first = std::int64_t{blockIdx.x} * kRows;
  RowBits<Vectors> next;
  read(first + threadIdx.x / Row, next);
  int parity = 0;
  // Rows share a warp: all threads of a block take as many turns.
  for (; first < rows; first += step, parity ^= 1) {
    const std::int64_t r = first + threadIdx.x / Row;
    const RowBits<Vectors> bits = next;
    read(r + step, next);
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

void add_parts(float* dw, const float* parts, std::int64_t count, std::int64_t cols,
               std::int64_t stride, cudaStream_t stream) {
  add_parts_kernel<<<static_cast<unsigned>(ceil_div(cols, kWarp)), dim3(kWarp, kWarp), 0, stream>>>(
      dw, parts, count, cols, stride);
}

// Calls launch(threads of a row, vectors of a thread, threads of a block) as constants.
template <int Row, int Vectors, int Threads>
struct Shape {
  static constexpr int kRow = Row, kVectors = Vectors, kThreads = Threads;
};
template <class Launch>
void with_head_shape(std::int64_t cols, Launch launch) {
  if (cols <= 64) return launch(Shape<8, 1, 256>{});
  if (cols <= 128) return launch(Shape<16, 1, 256>{});
  launch(Shape<32, 1, 256>{});
}
template <class Launch>
void with_shape(std::int64_t cols, Launch launch) {
  if (cols <= 256) return with_head_shape(cols, launch);
  if (cols <= 1024) return launch(Shape<128, 1, 128>{});
  if (cols <= 2048) return launch(Shape<256, 1, 256>{});
  if (cols <= 4096) return launch(Shape<256, 2, 256>{});
  if (cols <= 8192) return launch(Shape<512, 2, 512>{});
  launch(Shape<512, 4, 512>{});
}

}  // namespace

void rms_norm(bf16* y, Lines y_lines, const bf16* x, const bf16* w, std::int64_t rows,
              std::int64_t cols, float eps, cudaStream_t stream) {
  with_shape(cols, [&](auto shape) {
    using S = decltype(shape);
    const auto blocks = static_cast<unsigned>(ceil_div(rows, S::kThreads / S::kRow));
    rms_norm_kernel<S::kRow, S::kVectors, S::kThreads>
        <<<blocks, S::kThreads, 0, stream>>>(y, y_lines, x, w, rows, cols, eps);
  });
}

void rms_norm_backward(const NormBackward& operands, std::int64_t rows, std::int64_t cols,
                       float eps, float* scratch, cudaStream_t stream) {
  with_shape(cols, [&](auto shape) {
    using S = decltype(shape);
    // A block that has few rows would write as much of its sums as it reads.
    const std::int64_t wanted = ceil_div(rows, S::kThreads / S::kRow * kRowsOfBlock);
    const std::int64_t most =
        (S::kVectors > 1 ? kWideBackwardThreads : kBackwardThreads) / S::kThreads;
    const std::int64_t blocks = wanted < most ? wanted : most;
    rms_norm_backward_kernel<S::kRow, S::kVectors, S::kThreads>
        <<<static_cast<unsigned>(blocks), S::kThreads, 0, stream>>>(operands, scratch, rows, cols,
                                                                    eps);
    add_parts(operands.dw, scratch, blocks, cols, cols, stream);
  });
}

void split_normed_heads(const PackedHeads& heads, const Rotation& rotation, const HeadNorms& norms,
                        cudaStream_t stream) {
  with_head_shape(heads.head_dim, [&](auto shape) {
    using S = decltype(shape);
    split_normed_kernel<S::kRow, S::kThreads>
        <<<static_cast<unsigned>(heads.rows), S::kThreads, 0, stream>>>(heads, rotation, norms);
  });
}

void pack_normed_heads(bf16* dpacked, float* dq_norm, float* dk_norm, const PackedHeads& heads,
                       const Rotation& rotation, const HeadNorms& norms, float* scratch,
                       cudaStream_t stream) {
  with_head_shape(heads.head_dim, [&](auto shape) {
    using S = decltype(shape);
    const std::int64_t most = kWideBackwardThreads / S::kThreads;
    const std::int64_t blocks = heads.rows < most ? heads.rows : most;
    pack_normed_kernel<S::kRow, S::kThreads>
        <<<static_cast<unsigned>(blocks), S::kThreads, 0, stream>>>(dpacked, scratch, heads,
                                                                    rotation, norms);
    const std::int64_t d = heads.head_dim;
    add_parts(dq_norm, scratch, blocks, d, 2 * d, stream);
    add_parts(dk_norm, scratch + d, blocks, d, 2 * d, stream);
  });
}

}  // namespace qplan::kernels
