// Mamba-2's scan in chunks of tokens (state-space duality, arXiv 2405.21060). With step dt and
// decay a = exp(-exp(a_log) dt) a head's state S and what it gives are
//
//   S = a S + dt x B^T;   y = S C + skip x
//
// With d(j, i) the product of the decays behind token j up to i, and S the state that a chunk
// begins with, a token i of the chunk reads
//
//   y_i = d(0, i) S C_i + sum over j <= i of d(j, i) dt_j (C_i . B_j) x_j + skip x_i
//
// which are products of whole chunks. Backward the gradient G of the state that a chunk leaves
// comes from behind as the state does from the front, and both are read likewise. The gradient of a
// decay's logarithm at t is the sum of all that was carried across it, of pairs j < t <= i, from S
// to i, from j to G, and from S to G: it grows from the chunk's end on, where it is <G, S>.

#include "kernels/scan.cuh"

namespace qplan::kernels {
namespace ssd {
namespace {

// A warp has a chunk and head.
__global__ void __launch_bounds__(kThreads) scan_gates_kernel(ChunkGates* gates, Scan s) {
  const std::int64_t i = thread_index() / kWarp, head = i % s.heads;
  if (i >= s.batch * chunks_of(s.seq_len) * s.heads) return;
  const ChunkPlace at = chunk_at(i / s.heads, s.seq_len);
  gates[i].fill([&](int token, float& decay, float& strength) {
    if (token >= at.rows) return;
    strength = step_of(s, raw_step(s, at.row + token, head), head).size;
    decay = rate_of(s, head) * strength;
  });
}

// ---- states between chunks ----

constexpr int kSlice = 64;  // columns of a state that a block has

// Of a chunk and of the next: no barrier but the one ahead of the products.
template <int HeadDim>
struct WalkShared {
  Tile<kChunk, HeadDim> x[2];
  Tile<kChunk, kSlice> b[2];
};

// A block walks along a sequence with a head's state, or its gradient (z = 1).
template <int HeadDim>
__global__ void __launch_bounds__(kChunkThreads)
    scan_states_kernel(States states, const ChunkGates* gates, const bf16* dy, Scan s) {
  auto& m = shared_memory<WalkShared<HeadDim>>();
  const bool back = blockIdx.z > 0;
  const std::int64_t sequence = blockIdx.x / s.heads, head = blockIdx.x % s.heads;
  const std::int64_t first = std::int64_t{blockIdx.y} * kSlice, cols = s.state_size - first;
  const std::int64_t chunks = chunks_of(s.seq_len);
  bf16* const to = back ? states.end_gradients : states.begin;
  Coming<kChunk, HeadDim> x;
  Coming<kChunk, kSlice> b;
  float weights[Coming<kChunk, HeadDim>::kOwn], whole = 0;
  const auto place = [&](std::int64_t n) {
    return chunk_at(sequence, back ? chunks - 1 - n : n, s.seq_len);
  };
  const auto fetch = [&](const ChunkPlace& at) {
    x.fetch(back ? outputs_of(s, dy, at, head) : inputs_of(s, at, head));
    Rectangle shared = shared_of(s, at, group_of(s, head), back);
    shared.x += first;
    shared.cols = cols;
    b.fetch(shared);
    const ChunkGates& own = gates_of(s, gates, at, head);
    const float* const weight = back ? own.since_begin : own.added;
#pragma unroll
    for (int n = 0; n < x.kOwn; ++n) weights[n] = weight[x.row(n)];
    whole = own.whole();
  };
  Product<HeadDim, kSlice> state;
  fetch(place(0));
  for (std::int64_t n = 0; n < chunks; ++n) {
    auto& own_x = m.x[n % 2];
    auto& own_b = m.b[n % 2];
    x.put(own_x, weights);
    b.put(own_b);
    const float kept = whole;
    __syncthreads();
    state.write(to + state_begin(s, place(n), head) + first, s.state_size, s.head_dim, cols);
    if (n + 1 < chunks) fetch(place(n + 1));
    state.scale(kept);
    state.add(transposed(own_x), plain(own_b));
  }
}

// ---- outputs ----

template <int HeadDim, int StateSize>
struct OutputShared {
  Tile<kChunk, StateSize> b, c;
  Tile<kChunk, HeadDim> x;
  Tile<HeadDim, StateSize> state;
  Tile<kChunk, kChunk> weights;
  ChunkGates gates;
};

// A block has a chunk and a head.
template <int HeadDim, int StateSize>
__global__ void __launch_bounds__(kChunkThreads)
    scan_outputs_kernel(bf16* out, bf16* gated, const bf16* states, const ChunkGates* all, Scan s) {
  auto& m = shared_memory<OutputShared<HeadDim, StateSize>>();
  const ChunkPlace at = chunk_at(blockIdx.x, s.seq_len);
  const std::int64_t head = blockIdx.y, group = group_of(s, head);
  const Widths w = widths_of(s);
  {
    const auto b = coming(m.b, shared_of(s, at, group, false));
    const auto c = coming(m.c, shared_of(s, at, group, true));
    const auto x = coming(m.x, inputs_of(s, at, head));
    const auto state = coming(m.state, state_of(s, states, at, head));
    const auto gates = coming(gates_of(s, all, at, head));
    gates.put(m.gates);
    b.put(m.b);
    c.put(m.c);
    x.put(m.x);
    state.put(m.state);
  }
  __syncthreads();
  Product<kChunk, kChunk> pairs;
  pairs.add(plain(m.c), transposed(m.b));
  pairs.each([&](int i, int j, float& first, float& second) {
    first = j <= i ? first * m.gates.from_to(j, i) * m.gates.strength[j] : 0;
    second = j + 1 <= i ? second * m.gates.from_to(j + 1, i) * m.gates.strength[j + 1] : 0;
  });
  pairs.put(m.weights);
  Product<kChunk, HeadDim> y;
  y.add(plain(m.c), transposed(m.state));
  y.scale_rows([&](int i) { return m.gates.since_begin[i]; });
  float silu[y.kTiles][4];
#pragma unroll
  for (int t = 0; t < y.kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = y.row(half), c = y.col(t);
      const bool inside = i < at.rows && c < s.head_dim;
      const bf16* const from = s.projected + (at.row + i) * w.projected + head * s.head_dim + c;
      const float2 z = inside ? __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from))
                              : float2{0, 0};
      silu[t][2 * half] = z.x * sigmoid(z.x);
      silu[t][2 * half + 1] = z.y * sigmoid(z.y);
    }
  }
  __syncthreads();
  y.add(plain(m.weights), plain(m.x));
  const auto skip = static_cast<float>(s.skip[head]);
  Product<kChunk, HeadDim> behind_gate;
#pragma unroll
  for (int t = 0; t < y.kTiles; ++t) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      y.x[t][k] += skip * m.x.at(y.row(k / 2), y.col(t) + k % 2);
      behind_gate.x[t][k] = y.x[t][k] * silu[t][k];
    }
  }
  const std::int64_t to = at.row * w.inner + head * s.head_dim;
  y.write(out + to, w.inner, at.rows, s.head_dim);
  behind_gate.write(gated + to, w.inner, at.rows, s.head_dim);
}

}  // namespace

bf16* fill_gates(bf16* scratch, const Scan& s, cudaStream_t stream) {
  auto* const gates = reinterpret_cast<ChunkGates*>(scratch);
  const std::int64_t all = s.batch * chunks_of(s.seq_len) * s.heads;
  scan_gates_kernel<<<blocks_for(all * kWarp), kThreads, 0, stream>>>(gates, s);
  return reinterpret_cast<bf16*>(gates + all);
}

void walk_states(const States& states, const ChunkGates* gates, const bf16* dy, const Scan& s,
                 cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(s.batch * s.heads),
                  static_cast<unsigned>(ceil_div(s.state_size, kSlice)), dy == nullptr ? 1 : 2);
  with_width(s.head_dim, [&](auto dim) {
    const auto walk = scan_states_kernel<decltype(dim)::kWidth>;
    const auto bytes = shared_bytes<WalkShared<decltype(dim)::kWidth>>(walk);
    walk<<<grid, kChunkThreads, bytes, stream>>>(states, gates, dy, s);
  });
}

}  // namespace ssd

void scan(bf16* out, bf16* gated, const Scan& s, bf16* scratch, cudaStream_t stream) {
  using namespace ssd;
  const std::int64_t chunks = s.batch * chunks_of(s.seq_len);
  const auto* const gates = reinterpret_cast<const ChunkGates*>(scratch);
  bf16* const states = fill_gates(scratch, s, stream);
  walk_states({states, nullptr}, gates, nullptr, s, stream);
  with_widths(s, [&](auto dim, auto size) {
    constexpr int kDim = decltype(dim)::kWidth, kSize = decltype(size)::kWidth;
    const auto outputs = scan_outputs_kernel<kDim, kSize>;
    const auto bytes = shared_bytes<OutputShared<kDim, kSize>>(outputs);
    const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(s.heads));
    outputs<<<grid, kChunkThreads, bytes, stream>>>(out, gated, states, gates, s);
  });
}

}  // namespace qplan::kernels
