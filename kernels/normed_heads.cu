// Heads of queries and keys: normed, then turned, in one pass over the packed row, and back; or
// normed alone, without weights.

#include "kernels/kernels.h"
#include "kernels/rows.cuh"

namespace qplan::kernels {
namespace {

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

// Heads that a group of threads has under way.
constexpr int kBatch = 3;

// Which heads of which tokens a block's groups of `Row` threads take: `span` groups share a token,
// each with every span-th of its heads.
struct Walk {
  int span = 1, tokens = 1;  // of a block
};

// That of the powers of two whose groups are idle least, and the largest of such: of 24 heads 8
// groups have 3 each, of 40 two have 20 each in 7 turns.
Walk walk_of(std::int64_t heads, int groups) {
  const auto slots = [&](int span) { return ceil_div(heads, span * kBatch) * span * kBatch; };
  Walk walk;
  for (int span = 2; span <= groups; span *= 2) {
    if (slots(span) <= slots(walk.span)) walk.span = span;
  }
  walk.tokens = groups / walk.span;
  return walk;
}

// Values of a token are copied, by the threads of its groups.
__device__ void copy_values(bf16* to, const bf16* from, std::int64_t count, int thread,
                            int threads) {
  for (std::int64_t i = std::int64_t{thread} * kVector; i < count; i += threads * kVector) {
    *reinterpret_cast<uint4*>(to + i) = load_bits(from + i);
  }
}

// q and k are normed and turned, kBatch heads of a group under way; v is copied.
template <int Row, int Threads>
__global__ void __launch_bounds__(Threads)
    split_normed_kernel(PackedHeads h, Rotation rotation, HeadNorms norms, Walk walk) {
  const int q_heads = static_cast<int>(h.q_heads), kv_heads = static_cast<int>(h.kv_heads);
  const int normed = q_heads + kv_heads, heads = normed + kv_heads;
  const int group = threadIdx.x / Row, lane = threadIdx.x % Row, column = lane * kVector;
  const int place = group % walk.span;
  const std::int64_t token = std::int64_t{blockIdx.x} * walk.tokens + group / walk.span;
  const std::int64_t row = token < h.rows ? token : h.rows - 1, d = h.head_dim;
  const bool inside = column < d && token < h.rows;
  const bf16* packed = h.packed + row * heads * d;
  const Angles angles = angles_of(rotation, row, lane, /*back=*/false);
  const Vector q_weight = inside ? load(norms.q + column) : Vector{};
  const Vector k_weight = inside ? load(norms.k + column) : Vector{};
  // Heads share a warp: all threads take as many turns.
  for (int first = 0; first < normed; first += walk.span * kBatch) {
    uint4 bits[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int head = first + i * walk.span + place;
      bits[i] = uint4{};
      if (head < normed && inside) bits[i] = load_bits(packed + head * d + column);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int head = first + i * walk.span + place;
      Vector v = numbers_of(bits[i]);
      float squares = 0;
#pragma unroll
      for (int j = 0; j < kVector; ++j) squares += v.x[j] * v.x[j];
      const float scale = rsqrtf(row_sum<Row>(squares) / static_cast<float>(d) + norms.eps);
      const bool is_q = head < q_heads;
#pragma unroll
      for (int j = 0; j < kVector; ++j) v.x[j] *= scale * (is_q ? q_weight.x[j] : k_weight.x[j]);
      turn_head<Row>(v, angles);
      if (head >= normed || !inside) continue;
      bf16* to =
          is_q ? h.q + (row * q_heads + head) * d : h.k + (row * kv_heads + head - q_heads) * d;
      store(to + column, v);
    }
  }
  if (token >= h.rows) return;
  copy_values(h.v + row * kv_heads * d, packed + normed * d, kv_heads * d, place * Row + lane,
              walk.span * Row);
}

// The way back. A warp has a token at a time, the first by its own index and then those that it
// draws, as blocks draw pieces (rows.cuh). A block leaves its sums of dy n, of q and of k, in
// parts[block, :].
template <int Row, int Threads>
__global__ void __launch_bounds__(Threads)
    pack_normed_kernel(bf16* dpacked, float* parts, PackedHeads h, Rotation rotation,
                       HeadNorms norms, int which_draw) {
  constexpr int kGroups = Threads / Row, kSpan = kWarp / Row, kWarps = Threads / kWarp;
  const int q_heads = static_cast<int>(h.q_heads), kv_heads = static_cast<int>(h.kv_heads);
  const int normed = q_heads + kv_heads, heads = normed + kv_heads;
  const int group = threadIdx.x / Row, lane = threadIdx.x % Row, column = lane * kVector;
  const int place = group % kSpan;
  const std::int64_t d = h.head_dim;
  const Vector q_weight = column < d ? load(norms.q + column) : Vector{};
  const Vector k_weight = column < d ? load(norms.k + column) : Vector{};
  Vector q_sum = {}, k_sum = {};
  const int warps = static_cast<int>(gridDim.x) * kWarps;
  for (std::int64_t row = blockIdx.x * kWarps + threadIdx.x / kWarp, drawn = 0; row < h.rows;
       row = __shfl_sync(0xffffffffU, static_cast<int>(drawn), 0)) {
    if (which_draw == kNoDraw) {
      drawn = row + warps;
    } else if (threadIdx.x % kWarp == 0) {
      drawn = warps + draw_next(draws[which_draw]);
    }
    const bool inside = column < d;
    const bf16* packed = h.packed + row * heads * d;
    const Angles angles = angles_of(rotation, row, lane, /*back=*/true);
    for (int first = 0; first < normed; first += kSpan * kBatch) {
      uint4 x_bits[kBatch], dy_bits[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int head = first + i * kSpan + place;
        x_bits[i] = dy_bits[i] = uint4{};
        if (head >= normed || !inside) continue;
        const bf16* dy = head < q_heads ? h.q + (row * q_heads + head) * d
                                        : h.k + (row * kv_heads + head - q_heads) * d;
        dy_bits[i] = load_bits(dy + column);
        x_bits[i] = load_bits(packed + head * d + column);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int head = first + i * kSpan + place;
        const bool is_q = head < q_heads;
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
        if (head >= normed || !inside) continue;
        Vector out;
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const float n = x.x[j] * scale, own = g.x[j] * n;
          q_sum.x[j] += is_q ? own : 0;
          k_sum.x[j] += is_q ? 0 : own;
          out.x[j] = scale * (g.x[j] * (is_q ? q_weight.x[j] : k_weight.x[j]) - n * mean);
        }
        store(dpacked + (row * heads + head) * d + column, out);
      }
    }
    copy_values(dpacked + (row * heads + normed) * d, h.v + row * kv_heads * d, kv_heads * d,
                place * Row + lane, kSpan * Row);
  }
  // The groups' sums are added up, of q and then of k.
  __shared__ float shared[kGroups][2 * Row * kVector];
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    shared[group][column + j] = q_sum.x[j];
    shared[group][Row * kVector + column + j] = k_sum.x[j];
  }
  __syncthreads();
  if (threadIdx.x == 0 && which_draw != kNoDraw) end_drawing(draws[which_draw]);
  for (int c = threadIdx.x; c < 2 * d; c += Threads) {
    const int at = c < d ? c : Row * kVector + c - static_cast<int>(d);
    float sum = 0;
    for (int i = 0; i < kGroups; ++i) sum += shared[i][at];
    parts[blockIdx.x * 2 * d + c] = sum;
  }
}

// `Row` threads have a head of q or k, which lies on its own, without weights.
template <int Row, int Threads>
__global__ void __launch_bounds__(Threads) norm_kernel(PackedHeads h, float eps) {
  const std::int64_t line = std::int64_t{blockIdx.x} * (Threads / Row) + threadIdx.x / Row;
  const std::int64_t d = h.head_dim, heads = h.q_heads + h.kv_heads,
                     column = threadIdx.x % Row * kVector;
  const std::int64_t row = line / heads, head = line % heads;
  const bool inside = column < d && row < h.rows;  // heads share a warp: all threads stay
  const bf16* x = head < h.q_heads ? h.q + (row * h.q_heads + head) * d
                                   : h.k + (row * h.kv_heads + head - h.q_heads) * d;
  Vector v = inside ? load(x + column) : Vector{};
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kVector; ++j) squares += v.x[j] * v.x[j];
  const float scale = rsqrtf(row_sum<Row>(squares) / static_cast<float>(d) + eps);
#pragma unroll
  for (int j = 0; j < kVector; ++j) v.x[j] *= scale;
  if (inside) store(h.packed + line * d + column, v);
}

// The same of a head of q, k or v, the last of which is copied.
template <int Row, int Threads>
__global__ void __launch_bounds__(Threads)
    norm_backward_kernel(bf16* dpacked, const bf16* dnormed, PackedHeads h, float eps) {
  const std::int64_t line = std::int64_t{blockIdx.x} * (Threads / Row) + threadIdx.x / Row;
  const std::int64_t d = h.head_dim, normed = h.q_heads + h.kv_heads, heads = normed + h.kv_heads;
  const std::int64_t row = line / heads, head = line % heads, column = threadIdx.x % Row * kVector;
  const bool inside = column < d && row < h.rows, is_v = head >= normed;
  const bf16* x = head < h.q_heads ? h.q + (row * h.q_heads + head) * d
                  : !is_v          ? h.k + (row * h.kv_heads + head - h.q_heads) * d
                                   : h.v + (row * h.kv_heads + head - normed) * d;
  const Vector n = inside ? load(x + column) : Vector{};
  Vector g = inside && !is_v ? load(dnormed + (row * normed + head) * d + column) : Vector{};
  float2 both{0, 0};  // squares, and dy x
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    both.x += n.x[j] * n.x[j];
    both.y += g.x[j] * n.x[j];
  }
  both = row_sums<Row>(both, 0);
  const float scale = rsqrtf(both.x / static_cast<float>(d) + eps);
  const float mean = both.y * scale / static_cast<float>(d);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    g.x[j] = is_v ? n.x[j] : scale * (g.x[j] - n.x[j] * scale * mean);
  }
  if (inside) store(dpacked + line * d + column, g);
}

}  // namespace

void norm_heads(const PackedHeads& heads, float eps, cudaStream_t stream) {
  with_head_shape(heads.head_dim, [&](auto shape) {
    using S = decltype(shape);
    const std::int64_t threads = heads.rows * (heads.q_heads + heads.kv_heads) * S::kRow;
    norm_kernel<S::kRow, S::kThreads>
        <<<static_cast<unsigned>(ceil_div(threads, S::kThreads)), S::kThreads, 0, stream>>>(heads,
                                                                                            eps);
  });
}

void norm_heads_backward(bf16* dpacked, const bf16* dnormed, const PackedHeads& heads, float eps,
                         cudaStream_t stream) {
  with_head_shape(heads.head_dim, [&](auto shape) {
    using S = decltype(shape);
    const std::int64_t threads = heads.rows * (heads.q_heads + 2 * heads.kv_heads) * S::kRow;
    norm_backward_kernel<S::kRow, S::kThreads>
        <<<static_cast<unsigned>(ceil_div(threads, S::kThreads)), S::kThreads, 0, stream>>>(
            dpacked, dnormed, heads, eps);
  });
}

void split_normed_heads(const PackedHeads& heads, const Rotation& rotation, const HeadNorms& norms,
                        cudaStream_t stream) {
  with_head_shape(heads.head_dim, [&](auto shape) {
    using S = decltype(shape);
    const Walk walk = walk_of(heads.q_heads + heads.kv_heads, S::kThreads / S::kRow);
    const auto blocks = static_cast<unsigned>(ceil_div(heads.rows, walk.tokens));
    split_normed_kernel<S::kRow, S::kThreads>
        <<<blocks, S::kThreads, 0, stream>>>(heads, rotation, norms, walk);
  });
}

void pack_normed_heads(bf16* dpacked, float* dq_norm, float* dk_norm, const PackedHeads& heads,
                       const Rotation& rotation, const HeadNorms& norms, float* scratch,
                       cudaStream_t stream, RowOrder order) {
  with_head_shape(heads.head_dim, [&](auto shape) {
    using S = decltype(shape);
    const std::int64_t most = kWideBackwardThreads / S::kThreads;
    const std::int64_t wanted = ceil_div(heads.rows, S::kThreads / kWarp);
    const std::int64_t blocks = wanted < most ? wanted : most;
    const int draw = draw_of(order);
    pack_normed_kernel<S::kRow, S::kThreads>
        <<<static_cast<unsigned>(blocks), S::kThreads, 0, stream>>>(dpacked, scratch, heads,
                                                                    rotation, norms, draw);
    const std::int64_t d = heads.head_dim;
    if (dq_norm == nullptr) return;
    add_parts(dq_norm, scratch, blocks, d, 2 * d, stream);
    add_parts(dk_norm, scratch + d, blocks, d, 2 * d, stream);
  });
}

}  // namespace qplan::kernels
