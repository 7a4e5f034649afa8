// The gradients of Mamba-2's scan; what is computed, and why, stands in scan.cu.

#include "kernels/scan.cuh"

namespace qplan::kernels {
namespace ssd {
namespace {

// dy of the gated output's gradient, and the gate's gradient.
__global__ void __launch_bounds__(kThreads)
    scan_gate_backward_kernel(bf16* dy, bf16* dprojected, const bf16* out, const bf16* dgated,
                              Scan s) {
  const Widths w = widths_of(s);
  const std::int64_t i = thread_index() * kVector, row = i / w.inner, c = i % w.inner;
  if (row >= s.batch * s.seq_len) return;
  Vector z = load(s.projected + row * w.projected + c), d = load(dgated + i);
  const Vector y = load(out + i);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float share = sigmoid(z.x[j]);
    const float by_gate = d.x[j] * y.x[j] * share * (1 + z.x[j] * (1 - share));
    d.x[j] *= z.x[j] * share;
    z.x[j] = by_gate;
  }
  store(dprojected + row * w.projected + c, z);
  store(dy + i, d);
}

// A block has the heads of a group, or some of them, one after the other: gradients of B and C are
// their sums. It leaves them, and what tokens give to a head's own weights, to be added up.
constexpr std::int64_t kMostHeads = 8;
__host__ __device__ std::int64_t heads_of_group(const Scan& s) {
  return s.heads / s.groups;
}
__host__ __device__ std::int64_t slices_of_group(const Scan& s) {
  return (heads_of_group(s) + kMostHeads - 1) / kMostHeads;
}
struct Partial {
  float *db, *dc;                     // (rows, groups * slices, state_size)
  float *of_bias, *of_log, *of_skip;  // (heads, chunks)
};

template <int HeadDim, int StateSize>
struct GradientShared {
  Tile<kChunk, StateSize> b, c;
  Tile<kChunk, HeadDim> x, dy;
  Tile<HeadDim, StateSize> state, end_gradient;
  Tile<kChunk, kChunk> reads, adds;
  ChunkGates gates;
  // For each token: what its output, and what its own addition, has of pairs of tokens; the same of
  // the chunk's first state and of the last one's gradient; and of the skip.
  RowSums<2> paired_reads, state_reads, gradient_adds, skips;
  ColumnSums paired_adds;
  float grown[kChunk];
};

template <int HeadDim, int StateSize>
class ChunkGradients {
 public:
  using Shared = GradientShared<HeadDim, StateSize>;
  using Pairs = Product<kChunk, kChunk>;
  using OfInput = Product<kChunk, HeadDim>;
  using OfShared = Product<kChunk, StateSize>;

  __device__ ChunkGradients(Shared& shared, const Scan& scan)
      : m(shared), s(scan), at(chunk_at(blockIdx.x, scan.seq_len)) {}

  __device__ void run(const ScanGradients& g, const Partial& partial, const States& states,
                      const ChunkGates* gates, const bf16* dy) {
    const std::int64_t slices = slices_of_group(s), group = blockIdx.y / slices;
    const std::int64_t first = blockIdx.y % slices * kMostHeads, all = heads_of_group(s);
    const std::int64_t last = first + kMostHeads < all ? first + kMostHeads : all;
    {
      const auto b = coming(m.b, shared_of(s, at, group, false));
      const auto c = coming(m.c, shared_of(s, at, group, true));
      b.put(m.b);
      c.put(m.c);
    }
    for (std::int64_t h = first; h < last; ++h) {
      head = group * all + h;
      bring(states, gates, dy);
      weigh_pairs();
      of_input(g);
      of_shared();
      of_step(g, partial);
    }
    if (slices == 1) {
      const Widths w = widths_of(s);
      bf16* const to = g.dxbc + at.row * w.channels + w.inner + group * s.state_size;
      db.write(to, w.channels, at.rows, s.state_size);
      dc.write(to + w.shared, w.channels, at.rows, s.state_size);
      return;
    }
    const std::int64_t stride = s.groups * slices * s.state_size;
    const std::int64_t begin = at.row * stride + blockIdx.y * s.state_size;
    write_sums(partial.db + begin, stride, db);
    write_sums(partial.dc + begin, stride, dc);
  }

 private:
  __device__ void bring(const States& states, const ChunkGates* all, const bf16* gradient) {
    const auto x = coming(m.x, inputs_of(s, at, head));
    const auto dy = coming(m.dy, outputs_of(s, gradient, at, head));
    const auto state = coming(m.state, state_of(s, states.begin, at, head));
    const auto end = coming(m.end_gradient, state_of(s, states.end_gradients, at, head));
    const auto gates = coming(gates_of(s, all, at, head));
    __syncthreads();
    gates.put(m.gates);
    x.put(m.x);
    dy.put(m.dy);
    state.put(m.state);
    end.put(m.end_gradient);
    __syncthreads();
  }

  // Of token i that reads what j has added: C_i . B_j weighs x_j, dy_i . x_j weighs B_j.
  __device__ void weigh_pairs() {
    Pairs cb, dyx;
    cb.add(plain(m.c), transposed(m.b));
    dyx.add(plain(m.dy), transposed(m.x));
    float of_column[Pairs::kTiles][2] = {}, of_row[2] = {};
#pragma unroll
    for (int t = 0; t < Pairs::kTiles; ++t) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int i = Pairs::row(k / 2), j = Pairs::col(t) + k % 2;
        const float left = j <= i ? m.gates.from_to(j, i) : 0, size = m.gates.strength[j];
        const float both = left * cb.x[t][k] * dyx.x[t][k];
        of_column[t][k % 2] += both;
        of_row[k / 2] += both * size;
        cb.x[t][k] *= left * size;
        dyx.x[t][k] *= left * size;
      }
    }
    cb.put(m.adds);
    dyx.put(m.reads);
    m.paired_adds.put(of_column);
    m.paired_reads.template put<Pairs>([&](int half) { return of_row[half]; });
  }

  __device__ void of_input(const ScanGradients& g) {
    OfInput dx;
    dx.add(plain(m.b), transposed(m.end_gradient));
    float added[2] = {}, skipped[2] = {};
    dx.each([&](int j, int c, float& first, float& second) {
      const float2 x = m.x.two(j, c), dy = m.dy.two(j, c);
      const int half = j % 16 / 8;
      added[half] += x.x * first + x.y * second;
      skipped[half] += x.x * dy.x + x.y * dy.y;
    });
    m.gradient_adds.template put<OfInput>(
        [&](int half) { return added[half] * m.gates.to_end[OfInput::row(half)]; });
    m.skips.template put<OfInput>([&](int half) { return skipped[half]; });
    dx.scale_rows([&](int j) { return m.gates.added[j]; });
    __syncthreads();  // pairs are there
    dx.add(transposed(m.adds), plain(m.dy));
    const auto skip = static_cast<float>(s.skip[head]);
    dx.each([&](int j, int c, float& first, float& second) {
      const float2 dy = m.dy.two(j, c);
      first += skip * dy.x;
      second += skip * dy.y;
    });
    const Widths w = widths_of(s);
    dx.write(g.dxbc + at.row * w.channels + head * s.head_dim, w.channels, at.rows, s.head_dim);
  }

  __device__ void of_shared() {
    OfShared own;
    own.add(plain(m.dy), plain(m.state));
    own.scale_rows([&](int i) { return m.gates.since_begin[i]; });
    float read[2] = {};
    own.each([&](int i, int c, float& first, float& second) {
      const float2 shared = m.c.two(i, c);
      read[i % 16 / 8] += shared.x * first + shared.y * second;
    });
    m.state_reads.template put<OfShared>([&](int half) { return read[half]; });
    dc.add(own);
    dc.add(plain(m.reads), plain(m.b));
    OfShared other;
    other.add(plain(m.x), plain(m.end_gradient));
    other.scale_rows([&](int j) { return m.gates.added[j]; });
    db.add(other);
    db.add(transposed(m.reads), plain(m.c));
  }
  __device__ void of_step(const ScanGradients& g, const Partial& partial) {
    float carried = 0;  // <G, S> of the end's gradient and the first state
    for (int i = threadIdx.x; i < HeadDim * StateSize / 2; i += kChunkThreads) {
      const int row = 2 * i / StateSize, col = 2 * i % StateSize;
      const float2 x = m.state.two(row, col), y = m.end_gradient.two(row, col);
      carried += x.x * y.x + x.y * y.y;
    }
    carried = block_sum<kChunkThreads>(carried) * m.gates.whole();
    if (threadIdx.x >= kWarp) return;
    float behind = 0, of_bias = 0, of_log = 0, of_skip = 0;
#pragma unroll
    for (int t = threadIdx.x; t < kChunk; t += kWarp) {
      const float size = m.gates.strength[t], adds = m.gradient_adds[t];
      behind += size * adds;
      m.grown[t] = m.paired_reads[t] + m.state_reads[t] - size * (m.paired_adds[t] + adds);
    }
    __syncwarp();
    sum_from_behind(m.grown, carried + warp_sum(behind));
    __syncwarp();
#pragma unroll
    for (int t = threadIdx.x; t < kChunk; t += kWarp) {
      if (t >= at.rows) continue;
      const std::int64_t row = at.row + t;
      const Step step = step_of(s, raw_step(s, row, head), head);
      const float of_decay = m.grown[t] * rate_of(s, head);
      const float of_size = m.paired_adds[t] + m.gradient_adds[t] + of_decay;
      const float of_raw = step.held ? 0 : of_size * sigmoid(step.raw);
      g.dprojected[row * widths_of(s).projected + step_column(s, head)] =
          __float2bfloat16_rn(of_raw);
      of_bias += of_raw;
      of_log += of_decay * step.size;
      of_skip += m.skips[t];
    }
    of_bias = warp_sum(of_bias);
    of_log = warp_sum(of_log);
    of_skip = warp_sum(of_skip);
    if (threadIdx.x > 0) return;
    const std::int64_t to = head * gridDim.x + blockIdx.x;
    partial.of_bias[to] = of_bias;
    partial.of_log[to] = of_log;
    partial.of_skip[to] = of_skip;
  }

  __device__ void write_sums(float* to, std::int64_t stride, OfShared& sum) const {
    sum.each([&](int i, int c, float first, float second) {
      if (i >= at.rows || c >= s.state_size) return;
      *reinterpret_cast<float2*>(to + i * stride + c) = {first, second};
    });
  }

  Shared& m;
  const Scan& s;
  ChunkPlace at;
  std::int64_t head = 0;
  OfShared db, dc;
};

template <int HeadDim, int StateSize>
__global__ void __launch_bounds__(kChunkThreads)
    scan_gradients_kernel(ScanGradients g, Partial partial, States states, const ChunkGates* gates,
                          const bf16* dy, Scan s) {
  auto& shared = shared_memory<GradientShared<HeadDim, StateSize>>();
  ChunkGradients<HeadDim, StateSize>(shared, s).run(g, partial, states, gates, dy);
}

// Sums over the slices of a group.
__global__ void __launch_bounds__(kThreads) scan_shared_kernel(bf16* dxbc, Partial p, Scan s) {
  const Widths w = widths_of(s);
  const std::int64_t i = thread_index(), row = i / w.shared, col = i % w.shared;
  if (row >= s.batch * s.seq_len) return;
  const std::int64_t group = col / s.state_size, slices = slices_of_group(s);
  const std::int64_t from = (row * s.groups + group) * slices * s.state_size + col % s.state_size;
  float db = 0, dc = 0;
  for (std::int64_t slice = 0; slice < slices; ++slice) {
    db += p.db[from + slice * s.state_size];
    dc += p.dc[from + slice * s.state_size];
  }
  bf16* const to = dxbc + row * w.channels + w.inner + col;
  to[0] = __float2bfloat16_rn(db);
  to[w.shared] = __float2bfloat16_rn(dc);
}

// Sums over all chunks; a block has a head.
__global__ void __launch_bounds__(kThreads)
    scan_weights_kernel(ScanGradients g, Partial p, std::int64_t chunks) {
  const std::int64_t head = blockIdx.x;
  float of_bias = 0, of_log = 0, of_skip = 0;
  for (std::int64_t i = threadIdx.x; i < chunks; i += kThreads) {
    of_bias += p.of_bias[head * chunks + i];
    of_log += p.of_log[head * chunks + i];
    of_skip += p.of_skip[head * chunks + i];
  }
  of_bias = block_sum<kThreads>(of_bias);
  of_log = block_sum<kThreads>(of_log);
  of_skip = block_sum<kThreads>(of_skip);
  if (threadIdx.x > 0) return;
  if (g.d_dt_bias != nullptr) g.d_dt_bias[head] += of_bias;
  if (g.d_a_log != nullptr) g.d_a_log[head] += of_log;
  if (g.dskip != nullptr) g.dskip[head] += of_skip;
}

}  // namespace
}  // namespace ssd

void scan_backward(const ScanGradients& gradients, const Scan& s, const bf16* out,
                   const bf16* dgated, bf16* scratch, cudaStream_t stream) {
  using namespace ssd;
  const std::int64_t tokens = s.batch * s.seq_len, chunks = s.batch * chunks_of(s.seq_len);
  const std::int64_t all = chunks * s.heads, inner = tokens * s.heads * s.head_dim;
  const std::int64_t state = all * s.head_dim * s.state_size, slices = slices_of_group(s);
  const auto* const gates = reinterpret_cast<const ChunkGates*>(scratch);
  bf16* const begin = fill_gates(scratch, s, stream);
  const States states{begin, begin + state};
  bf16* const dy = begin + 2 * state;
  auto* const numbers = reinterpret_cast<float*>(dy + all * kChunk * s.head_dim);
  const std::int64_t shared = slices > 1 ? tokens * s.groups * slices * s.state_size : 0;
  float* const sums = numbers + 2 * shared;
  const Partial partial{numbers, numbers + shared, sums, sums + all, sums + 2 * all};
  scan_gate_backward_kernel<<<blocks_for(inner / kVector), kThreads, 0, stream>>>(
      dy, gradients.dprojected, out, dgated, s);
  walk_states(states, gates, dy, s, stream);
  with_widths(s, [&](auto dim, auto size) {
    constexpr int kDim = decltype(dim)::kWidth, kSize = decltype(size)::kWidth;
    const auto of_chunks = scan_gradients_kernel<kDim, kSize>;
    const auto bytes = shared_bytes<GradientShared<kDim, kSize>>(of_chunks);
    const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(s.groups * slices));
    of_chunks<<<grid, kChunkThreads, bytes, stream>>>(gradients, partial, states, gates, dy, s);
  });
  if (slices > 1) {
    scan_shared_kernel<<<blocks_for(tokens * s.groups * s.state_size), kThreads, 0, stream>>>(
        gradients.dxbc, partial, s);
  }
  scan_weights_kernel<<<static_cast<unsigned>(s.heads), kThreads, 0, stream>>>(gradients, partial,
                                                                               chunks);
}

}  // namespace qplan::kernels
