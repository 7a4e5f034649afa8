// The gated delta rule in chunks of tokens (arXiv 2406.06484, 2412.06464). With decay a, strength b
// and scale s = 1 / sqrt(key_dim) a head's state S and what it gives are
//
//   S = a S;   e = v - S^T k;   S += b k e^T;   out = s S^T q
//
// With d(j, i) the product of the decays behind token j up to i, and S the state that a chunk
// begins with, its errors E, one a row, follow from each other:
//
//   (1 + A) E = Z;   A_ij = d(j, i) b_j (k_i . k_j) for j < i;   Z_i = v_i - d(0, i) S^T k_i
//
// T, the inverse of 1 + A, needs no state, and neither do T V and W = T d(0, .) K: what is left to
// do from chunk to chunk is E = T V - W S and what tokens add to S. Then outputs are
//
//   out_i = s d(0, i) S^T q_i + sum over j <= i of s d(j, i) b_j (q_i . k_j) e_j
//
// Backward, G being the gradient of the state that a chunk leaves, b_j D_j is that of e_j as what
// tokens give and what is added to the state depend on it, and dZ = dv = T^T (b D). From dZ, E, S
// and G follow all others. The gradient of a decay's logarithm at t is the sum of all that was
// carried across it, as of the scan (kernels/scan.cu).

#include "kernels/delta_rule.cuh"

namespace qplan::kernels {
namespace delta {
namespace {

// A warp has a chunk and head.
__global__ void __launch_bounds__(kThreads) delta_gates_kernel(Between b, DeltaRule r) {
  const std::int64_t i = thread_index() / kWarp, head = i % r.value_heads;
  if (i >= r.batch * chunks_of(r.seq_len) * r.value_heads) return;
  const ChunkPlace at = chunk_at(i / r.value_heads, r.seq_len);
  b.gates[i].fill([&](int token, float& decay, float& strength) {
    if (token >= at.rows) return;
    const std::int64_t from = (at.row + token) * r.value_heads + head;
    decay = r.decay[from];
    strength = static_cast<float>(r.strength[from]);
  });
}

// ---- within chunks: T, W and T V ----

constexpr int kSquare = 16, kSquares = kChunk / kSquare;
static_assert(kSquare * kSquare == kChunkThreads, "a thread has a number of a square");

// The inverse of a lower triangle whose diagonal is 1, in fp32: squares on the diagonal row by row,
// and those below from what is above and right of them.
struct Triangle {
  float a[kChunk][kChunk + 1], inverse[kChunk][kChunk + 1];
  float product[kSquares - 1][kSquare][kSquare + 1];

  __device__ void invert() {
    if (threadIdx.x < kChunk) {
      const int col = threadIdx.x, first = col / kSquare * kSquare;
      float x[kSquare];
#pragma unroll
      for (int i = 0; i < kSquare; ++i) {
        x[i] = first + i == col ? 1 : 0;
#pragma unroll
        for (int j = 0; j < i; ++j) x[i] -= a[first + i][first + j] * x[j];
        inverse[first + i][col] = x[i];
      }
    }
    const int row = threadIdx.x / kSquare, col = threadIdx.x % kSquare;
    for (int below = 1; below < kSquares; ++below) {
      __syncthreads();
      for (int n = 0; n + below < kSquares; ++n) {
        const int from = n * kSquare, to = from + below * kSquare;
        float sum = 0;
        for (int first = from; first < to; first += kSquare) {
#pragma unroll
          for (int k = first; k < first + kSquare; ++k) {
            sum += a[to + row][k] * inverse[k][from + col];
          }
        }
        product[n][row][col] = sum;
      }
      __syncthreads();
      for (int n = 0; n + below < kSquares; ++n) {
        const int from = n * kSquare, to = from + below * kSquare;
        float sum = 0;
#pragma unroll
        for (int k = 0; k < kSquare; ++k) sum += inverse[to + row][to + k] * product[n][k][col];
        inverse[to + row][from + col] = -sum;
      }
    }
    __syncthreads();
  }
};

struct Inverses {
  Tile<kChunk, kChunk> t, decayed;  // columns of the second decay from the chunk's begin on
};
template <int KeyDim, int ValueDim>
struct PrepareShared {
  Tile<kChunk, KeyDim> k;
  Tile<kChunk, ValueDim> v;
  union {
    Triangle triangle;
    Inverses inverses;
  };
  ChunkGates gates;
};

template <int KeyDim, int ValueDim>
__global__ void __launch_bounds__(kChunkThreads) delta_prepare_kernel(Between b, DeltaRule r) {
  auto& m = shared_memory<PrepareShared<KeyDim, ValueDim>>();
  const ChunkPlace at = chunk_at(blockIdx.x, r.seq_len);
  const std::int64_t head = blockIdx.y;
  {
    const auto k = coming(m.k, keys_of(r, r.k, at, key_head_of(r, head)));
    const auto v = coming(m.v, values_of(r, r.v, at, head));
    const auto gates = coming(gates_of(r, b, at, head));
    gates.put(m.gates);
    k.put(m.k);
    v.put(m.v);
  }
  __syncthreads();
  Product<kChunk, kChunk> pairs;
  pairs.add(plain(m.k), transposed(m.k));
  pairs.each([&](int i, int j, float first, float second) {
    const auto weight = [&](int token) {
      return token < i ? m.gates.from_to(token, i) * m.gates.strength[token] : 0;
    };
    m.triangle.a[i][j] = first * weight(j);
    m.triangle.a[i][j + 1] = second * weight(j + 1);
  });
  __syncthreads();
  m.triangle.invert();
  pairs.each([&](int i, int j, float& first, float& second) {
    first = j <= i ? m.triangle.inverse[i][j] : 0;
    second = j + 1 <= i ? m.triangle.inverse[i][j + 1] : 0;
  });
  __syncthreads();  // tiles lie where the triangle was
  pairs.put(m.inverses.t);
  pairs.each([&](int i, int j, float first, float second) {
    m.inverses.decayed.put(i, j, first * m.gates.since_begin[j],
                           second * m.gates.since_begin[j + 1]);
  });
  if (b.t != nullptr) {
    pairs.write(b.t + own_begin(r, at, head, kChunk, kChunk), kChunk, kChunk, kChunk);
  }
  __syncthreads();
  Product<kChunk, KeyDim> w;
  w.add(plain(m.inverses.decayed), plain(m.k));
  w.write(b.w + own_begin(r, at, head, kChunk, r.key_dim), r.key_dim, kChunk, r.key_dim);
  Product<kChunk, ValueDim> e;
  e.add(plain(m.inverses.t), plain(m.v));
  e.write(b.e + own_begin(r, at, head, kChunk, r.value_dim), r.value_dim, kChunk, r.value_dim);
}

// ---- from chunk to chunk ----

// Of a chunk and of the next, where both are under way.
template <int KeyDim>
struct StateShared {
  Tile<kChunk, KeyDim> k[2], w[2];
  Tile<KeyDim, kSlice> state;
  Tile<kChunk, kSlice> error;
  ChunkGates gates[2];
};

// A block walks along a sequence with columns of a head's state, and makes E of T V.
template <int KeyDim>
__global__ void __launch_bounds__(kChunkThreads) delta_states_kernel(Between b, DeltaRule r) {
  auto& m = shared_memory<StateShared<KeyDim>>();
  const std::int64_t sequence = blockIdx.x / r.value_heads, head = blockIdx.x % r.value_heads;
  const std::int64_t first = std::int64_t{blockIdx.y} * kSlice, cols = r.value_dim - first;
  const std::int64_t chunks = chunks_of(r.seq_len);
  Coming<kChunk, KeyDim> k, w;
  ComingGates gates;
  Product<kChunk, kSlice> given, error;  // T V of the next chunk, E
  const auto fetch = [&](std::int64_t chunk) {
    const ChunkPlace at = chunk_at(sequence, chunk, r.seq_len);
    k.fetch(keys_of(r, r.k, at, key_head_of(r, head)));
    w.fetch(own_of(r, b.w, at, head, kChunk, r.key_dim));
    gates.fetch(gates_of(r, b, at, head));
    given.read(b.e + own_begin(r, at, head, kChunk, r.value_dim) + first, r.value_dim, kChunk,
               cols);
  };
  Product<KeyDim, kSlice> state;
  fetch(0);
  for (std::int64_t n = 0; n < chunks; ++n) {
    const ChunkPlace at = chunk_at(sequence, n, r.seq_len);
    auto &own_k = m.k[n % 2], &own_w = m.w[n % 2];
    ChunkGates& own = m.gates[n % 2];
    k.put(own_k);
    w.put(own_w);
    gates.put(own);
    state.put(m.state);
    error = {};
    const auto values = given;
    __syncthreads();
    if (n + 1 < chunks) fetch(n + 1);
    error.add(plain(own_w), plain(m.state));
    error.subtract_from(values);
    error.each([&](int t, int c, float one, float other) {
      m.error.put(t, c, own.added[t] * one, own.added[t] * other);
    });
    __syncthreads();
    state.write(b.begin + own_begin(r, at, head, r.key_dim, r.value_dim) + first, r.value_dim,
                r.key_dim, cols);
    state.scale(own.whole());
    state.add(transposed(own_k), plain(m.error));
    error.write(b.e + own_begin(r, at, head, kChunk, r.value_dim) + first, r.value_dim, kChunk,
                cols);
  }
}

// ---- outputs ----

template <int KeyDim, int ValueDim>
__global__ void __launch_bounds__(kChunkThreads)
    delta_outputs_kernel(bf16* out, Between b, DeltaRule r) {
  auto& m = shared_memory<OutputShared<KeyDim, ValueDim>>();
  const ChunkPlace at = chunk_at(blockIdx.x, r.seq_len);
  const std::int64_t head = blockIdx.y, key_head = key_head_of(r, head);
  {
    const auto q = coming(m.q, keys_of(r, r.q, at, key_head));
    const auto k = coming(m.k, keys_of(r, r.k, at, key_head));
    const auto e = coming(m.values, own_of(r, b.e, at, head, kChunk, r.value_dim));
    const auto state = coming(m.state, own_of(r, b.begin, at, head, r.key_dim, r.value_dim));
    const auto gates = coming(gates_of(r, b, at, head));
    gates.put(m.gates);
    q.put(m.q);
    k.put(m.k);
    e.put(m.values);
    state.put(m.state);
  }
  __syncthreads();
  Product<kChunk, kChunk> pairs;
  pairs.add(plain(m.q), transposed(m.k));
  pairs.each([&](int i, int j, float& first, float& second) {
    first = j <= i ? first * m.gates.from_to(j, i) * m.gates.strength[j] : 0;
    second = j + 1 <= i ? second * m.gates.from_to(j + 1, i) * m.gates.strength[j + 1] : 0;
  });
  pairs.put(m.weights);
  Product<kChunk, ValueDim> own;
  own.add(plain(m.q), plain(m.state));
  own.scale_rows([&](int i) { return m.gates.since_begin[i]; });
  __syncthreads();
  own.add(plain(m.weights), plain(m.values));
  own.scale(scale_of(r));
  const std::int64_t stride = r.value_heads * r.value_dim;
  own.write(out + at.row * stride + head * r.value_dim, stride, at.rows, r.value_dim);
}

template <int KeyDim, int ValueDim>
void find(const Between& b, const DeltaRule& r, cudaStream_t stream) {
  const std::int64_t all = r.batch * chunks_of(r.seq_len) * r.value_heads;
  delta_gates_kernel<<<blocks_for(all * kWarp), kThreads, 0, stream>>>(b, r);
  const auto prepare = delta_prepare_kernel<KeyDim, ValueDim>;
  const auto prepare_bytes = shared_bytes<PrepareShared<KeyDim, ValueDim>>(prepare);
  prepare<<<chunk_grid(r, r.value_heads), kChunkThreads, prepare_bytes, stream>>>(b, r);
  const auto states = delta_states_kernel<KeyDim>;
  const auto states_bytes = shared_bytes<StateShared<KeyDim>>(states);
  states<<<walk_grid(r), kChunkThreads, states_bytes, stream>>>(b, r);
}

}  // namespace

void find_errors(const Between& b, const DeltaRule& r, cudaStream_t stream) {
  with_widths(r, [&](auto key, auto value) {
    find<decltype(key)::kWidth, decltype(value)::kWidth>(b, r, stream);
  });
}

}  // namespace delta

void delta_rule(bf16* out, const DeltaRule& r, bf16* scratch, cudaStream_t stream) {
  using namespace delta;
  const Between between = arranged(r, scratch, /*backward=*/false);
  find_errors(between, r, stream);
  with_widths(r, [&](auto key, auto value) {
    constexpr int kKey = decltype(key)::kWidth, kValue = decltype(value)::kWidth;
    const auto outputs = delta_outputs_kernel<kKey, kValue>;
    const auto bytes = shared_bytes<OutputShared<kKey, kValue>>(outputs);
    outputs<<<chunk_grid(r, r.value_heads), kChunkThreads, bytes, stream>>>(out, between, r);
  });
}

}  // namespace qplan::kernels
