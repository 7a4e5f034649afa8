// The gradients of the gated delta rule; what is computed, and why, stands in delta_rule.cu.

#include "kernels/delta_rule.cuh"

namespace qplan::kernels {
namespace delta {
namespace {

// ---- what outputs give to D ----

template <int KeyDim, int ValueDim>
__global__ void __launch_bounds__(kChunkThreads)
    delta_output_gradients_kernel(Between b, const bf16* dout, DeltaRule r) {
  auto& m = shared_memory<OutputShared<KeyDim, ValueDim>>();
  const ChunkPlace at = chunk_at(blockIdx.x, r.seq_len);
  const std::int64_t head = blockIdx.y, key_head = key_head_of(r, head);
  {
    const auto q = coming(m.q, keys_of(r, r.q, at, key_head));
    const auto k = coming(m.k, keys_of(r, r.k, at, key_head));
    const auto d = coming(m.values, values_of(r, dout, at, head));
    const auto gates = coming(gates_of(r, b, at, head));
    gates.put(m.gates);
    q.put(m.q);
    k.put(m.k);
    d.put(m.values);
  }
  __syncthreads();
  const float scale = scale_of(r);
  Product<kChunk, kChunk> pairs;
  pairs.add(plain(m.q), transposed(m.k));
  pairs.each([&](int i, int j, float& first, float& second) {
    first = j <= i ? scale * first * m.gates.from_to(j, i) : 0;
    second = j + 1 <= i ? scale * second * m.gates.from_to(j + 1, i) : 0;
  });
  pairs.put(m.weights);
  __syncthreads();
  Product<kChunk, ValueDim> own;
  own.add(transposed(m.weights), plain(m.values));
  own.write(b.d + own_begin(r, at, head, kChunk, r.value_dim), r.value_dim, kChunk, r.value_dim);
}

// ---- from chunk to chunk, from behind ----

template <int KeyDim>
struct GradientWalkShared {
  Tile<kChunk, KeyDim> q[2], k[2], w[2];
  Tile<KeyDim, kSlice> gradient;
  Tile<kChunk, kSlice> dout[2], d;
  ChunkGates gates[2];
};

// A block walks along a sequence with columns of the gradient of a head's state, and completes D.
template <int KeyDim>
__global__ void __launch_bounds__(kChunkThreads)
    delta_end_gradients_kernel(Between b, const bf16* dout, DeltaRule r) {
  auto& m = shared_memory<GradientWalkShared<KeyDim>>();
  const std::int64_t sequence = blockIdx.x / r.value_heads, head = blockIdx.x % r.value_heads;
  const std::int64_t first = std::int64_t{blockIdx.y} * kSlice, cols = r.value_dim - first;
  const float scale = scale_of(r);
  Coming<kChunk, KeyDim> q, k, w;
  Coming<kChunk, kSlice> out;
  float weights[Coming<kChunk, kSlice>::kOwn];  // of rows of `out`
  ComingGates gates;
  Product<kChunk, kSlice> given, whole;  // D without the end's gradient of the next chunk, D
  const auto fetch = [&](std::int64_t chunk) {
    const ChunkPlace at = chunk_at(sequence, chunk, r.seq_len);
    q.fetch(keys_of(r, r.q, at, key_head_of(r, head)));
    k.fetch(keys_of(r, r.k, at, key_head_of(r, head)));
    w.fetch(own_of(r, b.w, at, head, kChunk, r.key_dim));
    out.fetch(slice_of(values_of(r, dout, at, head), first));
#pragma unroll
    for (int n = 0; n < out.kOwn; ++n) {
      weights[n] = gates_of(r, b, at, head).since_begin[out.row(n)];
    }
    gates.fetch(gates_of(r, b, at, head));
    given.read(b.d + own_begin(r, at, head, kChunk, r.value_dim) + first, r.value_dim, kChunk,
               cols);
  };
  Product<KeyDim, kSlice> gradient;
  fetch(chunks_of(r.seq_len) - 1);
  for (std::int64_t n = chunks_of(r.seq_len) - 1; n >= 0; --n) {
    const ChunkPlace at = chunk_at(sequence, n, r.seq_len);
    auto &own_q = m.q[n % 2], &own_k = m.k[n % 2], &own_w = m.w[n % 2];
    auto& own_out = m.dout[n % 2];
    ChunkGates& own = m.gates[n % 2];
    q.put(own_q);
    k.put(own_k);
    w.put(own_w);
#pragma unroll
    for (float& weight : weights) weight *= scale;
    out.put(own_out, weights);
    gates.put(own);
    gradient.put(m.gradient);
    whole = {};
    const auto within = given;
    __syncthreads();
    if (n > 0) fetch(n - 1);
    whole.add(plain(own_k), plain(m.gradient));
    whole.scale_rows([&](int t) { return own.to_end[t]; });
    whole.add(within);
    whole.each([&](int t, int c, float one, float other) {
      m.d.put(t, c, -own.strength[t] * one, -own.strength[t] * other);
    });
    __syncthreads();
    gradient.write(b.end_gradients + own_begin(r, at, head, r.key_dim, r.value_dim) + first,
                   r.value_dim, r.key_dim, cols);
    gradient.scale(own.whole());
    gradient.add(transposed(own_q), plain(own_out));
    gradient.add(transposed(own_w), plain(m.d));
    whole.write(b.d + own_begin(r, at, head, kChunk, r.value_dim) + first, r.value_dim, kChunk,
                cols);
  }
}

// ---- gradients ----

template <int KeyDim, int ValueDim>
struct GradientShared {
  Tile<kChunk, KeyDim> q, k;
  Tile<kChunk, ValueDim> e, dout, dz;  // the third: b D at first
  Tile<KeyDim, ValueDim> state;        // ... then the end's gradient
  Tile<kChunk, kChunk> reads, errors;  // the first: T at first
  ChunkGates gates;
  // For each token: what its reading and its error have of pairs of tokens, and what it added; the
  // same of the chunk's first state and of the last one's gradient; and E . D.
  RowSums<2> paired_reads, state_reads, state_errors, gradient_adds;
  ColumnSums paired_adds, error_adds;
  float added[kChunk], grown[kChunk];
};

// A block has a chunk and the value heads of a key head, one after the other.
template <int KeyDim, int ValueDim>
class ChunkGradients {
 public:
  using Shared = GradientShared<KeyDim, ValueDim>;
  using Pairs = Product<kChunk, kChunk>;
  using OfKeys = Product<kChunk, KeyDim>;

  __device__ ChunkGradients(Shared& shared, const DeltaRule& rule)
      : m(shared), r(rule), at(chunk_at(blockIdx.x, rule.seq_len)), scale(scale_of(rule)) {}

  __device__ void run(const DeltaRuleGradients& g, const Between& b, const bf16* dout) {
    const std::int64_t key_head = blockIdx.y, group = r.value_heads / r.key_heads;
    {
      const auto q = coming(m.q, keys_of(r, r.q, at, key_head));
      const auto k = coming(m.k, keys_of(r, r.k, at, key_head));
      q.put(m.q);
      k.put(m.k);
    }
    for (std::int64_t i = 0; i < group; ++i) {
      head = key_head * group + i;
      bring(b, dout);
      of_values(g);
      weigh_pairs();
      read_state();
      read_gradient(b);
      of_pairs();
      of_gates(g);
    }
    const std::int64_t stride = r.key_heads * r.key_dim;
    const std::int64_t to = at.row * stride + key_head * r.key_dim;
    dq.write(g.dq + to, stride, at.rows, r.key_dim);
    dk.write(g.dk + to, stride, at.rows, r.key_dim);
  }

 private:
  __device__ void bring(const Between& b, const bf16* gradient) {
    const auto e = coming(m.e, own_of(r, b.e, at, head, kChunk, r.value_dim));
    const auto d = coming(m.dz, own_of(r, b.d, at, head, kChunk, r.value_dim));
    const auto dout = coming(m.dout, values_of(r, gradient, at, head));
    const auto t = coming(m.reads, own_of(r, b.t, at, head, kChunk, kChunk));
    const auto state = coming(m.state, own_of(r, b.begin, at, head, r.key_dim, r.value_dim));
    const auto gates = coming(gates_of(r, b, at, head));
    float strengths[d.kOwn];
#pragma unroll
    for (int n = 0; n < d.kOwn; ++n) strengths[n] = gates_of(r, b, at, head).strength[d.row(n)];
    __syncthreads();
    gates.put(m.gates);
    e.put(m.e);
    d.put(m.dz, strengths);
    dout.put(m.dout);
    t.put(m.reads);
    state.put(m.state);
    // E . D: neighbouring threads have a row.
#pragma unroll
    for (int n = 0; n < e.kOwn; ++n) {
      const Vector x = numbers_of(e.bits[n]), y = numbers_of(d.bits[n]);
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kVector; ++i) sum += x.x[i] * y.x[i];
#pragma unroll
      for (int step = 1; step < e.kUnits; step *= 2) {
        sum += __shfl_xor_sync(0xffffffffU, sum, step);
      }
      if (threadIdx.x % e.kUnits == 0) m.added[e.row(n)] = sum;
    }
    __syncthreads();
  }

  __device__ void of_values(const DeltaRuleGradients& g) {
    Product<kChunk, ValueDim> dz;
    dz.add(transposed(m.reads), plain(m.dz));
    const std::int64_t stride = r.value_heads * r.value_dim;
    dz.write(g.dv + at.row * stride + head * r.value_dim, stride, at.rows, r.value_dim);
    __syncthreads();
    dz.put(m.dz);
    __syncthreads();
  }

  // Of token i and what j added: dout_i . e_j weighs keys and queries, dZ_i . e_j keys of both.
  __device__ void weigh_pairs() {
    float of_row[2] = {}, of_column[Pairs::kTiles][2] = {}, of_error[Pairs::kTiles][2] = {};
    {
      Pairs reads, qk;
      reads.add(plain(m.dout), transposed(m.e));
      qk.add(plain(m.q), transposed(m.k));
      weigh(
          reads, qk, [&](int j, int i) { return j <= i ? scale * m.gates.from_to(j, i) : 0; },
          of_row, of_column);
      reads.put(m.reads);
    }
    {
      Pairs errors, kk;
      errors.add(plain(m.dz), transposed(m.e));
      kk.add(plain(m.k), transposed(m.k));
      weigh(
          errors, kk, [&](int j, int i) { return j < i ? -m.gates.from_to(j, i) : 0; }, of_row,
          of_error);
      errors.put(m.errors);
    }
    m.paired_reads.template put<Pairs>([&](int half) { return of_row[half]; });
    m.paired_adds.put(of_column);
    m.error_adds.put(of_error);
  }
  // Numbers of `pairs` times left(j, i) and the strength of j; sums of them times what they weigh,
  // by rows, and by columns without the strength.
  template <class Left>
  __device__ void weigh(Pairs& pairs, const Pairs& weighed, Left left, float (&of_row)[2],
                        float (&of_column)[Pairs::kTiles][2]) {
#pragma unroll
    for (int t = 0; t < Pairs::kTiles; ++t) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int i = Pairs::row(k / 2), j = Pairs::col(t) + k % 2;
        const float own = left(j, i) * pairs.x[t][k], strength = m.gates.strength[j];
        of_column[t][k % 2] += own * weighed.x[t][k];
        of_row[k / 2] += own * weighed.x[t][k] * strength;
        pairs.x[t][k] = own * strength;
      }
    }
  }

  // Adds to `sum` the rows of x times the state, or its gradient, each times a number, and keeps
  // their products with what those numbers belong to.
  template <class Scale>
  __device__ void read(OfKeys& sum, const Tile<kChunk, ValueDim>& x, Scale by,
                       const Tile<kChunk, KeyDim>& own, RowSums<2>& sums) {
    OfKeys given;
    given.add(plain(x), transposed(m.state));
    given.scale_rows(by);
    float with[2] = {};
    given.each([&](int i, int c, float& first, float& second) {
      const float2 two = own.two(i, c);
      with[i % 16 / 8] += two.x * first + two.y * second;
    });
    sums.template put<OfKeys>([&](int half) { return with[half]; });
    sum.add(given);
  }
  __device__ void read_state() {
    read(
        dq, m.dout, [&](int i) { return scale * m.gates.since_begin[i]; }, m.q, m.state_reads);
    read(
        dk, m.dz, [&](int i) { return -m.gates.since_begin[i]; }, m.k, m.state_errors);
  }
  __device__ void read_gradient(const Between& b) {
    const auto end = coming(m.state, own_of(r, b.end_gradients, at, head, r.key_dim, r.value_dim));
    carried = 0;
#pragma unroll
    for (int n = 0; n < end.kOwn; ++n) {
      const Vector x = numbers_of(end.bits[n]), y = load(&m.state.x[end.row(n)][end.col(n)]);
#pragma unroll
      for (int i = 0; i < kVector; ++i) carried += x.x[i] * y.x[i];
    }
    carried = block_sum<kChunkThreads>(carried) * m.gates.whole();
    __syncthreads();
    end.put(m.state);
    __syncthreads();
    read(
        dk, m.e, [&](int j) { return m.gates.added[j]; }, m.k, m.gradient_adds);
  }
  __device__ void of_pairs() {
    dq.add(plain(m.reads), plain(m.k));
    dk.add(transposed(m.reads), plain(m.q));
    dk.add(plain(m.errors), plain(m.k));
    dk.add(transposed(m.errors), plain(m.k));
  }

  __device__ void of_gates(const DeltaRuleGradients& g) {
    __syncthreads();
    if (threadIdx.x >= kWarp) return;
    float behind = 0;
#pragma unroll
    for (int t = threadIdx.x; t < kChunk; t += kWarp) {
      const float adds = m.gradient_adds[t];
      behind += adds;
      m.grown[t] = m.paired_reads[t] + m.state_reads[t] + m.state_errors[t] - adds -
                   m.gates.strength[t] * (m.paired_adds[t] + m.error_adds[t]);
    }
    __syncwarp();
    sum_from_behind(m.grown, carried + warp_sum(behind));
    __syncwarp();
#pragma unroll
    for (int t = threadIdx.x; t < kChunk; t += kWarp) {
      if (t >= at.rows) continue;
      const std::int64_t to = (at.row + t) * r.value_heads + head;
      g.ddecay[to] = m.grown[t];
      g.dstrength[to] = __float2bfloat16_rn(m.added[t] + m.error_adds[t]);
    }
  }

  Shared& m;
  const DeltaRule& r;
  ChunkPlace at;
  float scale;
  std::int64_t head = 0;
  float carried = 0;  // <G, S> of the end's gradient and the first state, decayed
  OfKeys dq, dk;
};

template <int KeyDim, int ValueDim>
__global__ void __launch_bounds__(kChunkThreads)
    delta_gradients_kernel(DeltaRuleGradients g, Between b, const bf16* dout, DeltaRule r) {
  auto& shared = shared_memory<GradientShared<KeyDim, ValueDim>>();
  ChunkGradients<KeyDim, ValueDim>(shared, r).run(g, b, dout);
}

}  // namespace
}  // namespace delta

void delta_rule_backward(const DeltaRuleGradients& gradients, const DeltaRule& r, const bf16* dout,
                         bf16* scratch, cudaStream_t stream) {
  using namespace delta;
  const Between between = arranged(r, scratch, /*backward=*/true);
  find_errors(between, r, stream);
  with_widths(r, [&](auto key, auto value) {
    constexpr int kKey = decltype(key)::kWidth, kValue = decltype(value)::kWidth;
    const auto outputs = delta_output_gradients_kernel<kKey, kValue>;
    const auto output_bytes = shared_bytes<OutputShared<kKey, kValue>>(outputs);
    outputs<<<chunk_grid(r, r.value_heads), kChunkThreads, output_bytes, stream>>>(between, dout,
                                                                                   r);
    const auto walk = delta_end_gradients_kernel<kKey>;
    const auto walk_bytes = shared_bytes<GradientWalkShared<kKey>>(walk);
    walk<<<walk_grid(r), kChunkThreads, walk_bytes, stream>>>(between, dout, r);
    const auto last = delta_gradients_kernel<kKey, kValue>;
    const auto last_bytes = shared_bytes<GradientShared<kKey, kValue>>(last);
    last<<<chunk_grid(r, r.key_heads), kChunkThreads, last_bytes, stream>>>(gradients, between,
                                                                            dout, r);
  });
}

}  // namespace qplan::kernels
