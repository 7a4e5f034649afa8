// What prepares the gated delta rule's operands and takes their gradients: rows of unit length,
// decays and strengths, and the order of what the layer's projection makes.

#include "kernels/projected.cuh"
#include "kernels/rows.cuh"

namespace qplan::kernels {
namespace {

constexpr float kUnitEpsilon = 1e-6F;  // l2norm's in fla and transformers 5.23

// A thread's part of a head of queries (which 0) or keys (1); a row's queries come first.
struct UnitPart {
  std::int64_t row, which, head, column;
  bool inside;
  // Of the row's packed queries and keys, of those apart, and of the scales.
  std::int64_t packed, own, scale;
};
template <int Row, int Threads>
__device__ UnitPart unit_part(const UnitHeads& h) {
  const std::int64_t i = std::int64_t{blockIdx.x} * (Threads / Row) + threadIdx.x / Row;
  UnitPart p{};
  p.row = i / (2 * h.heads);
  p.which = i / h.heads % 2;
  p.head = i % h.heads;
  p.column = threadIdx.x % Row * kVector;
  p.inside = p.row < h.rows && p.column < h.dim;
  p.packed = i * h.dim + p.column;
  p.own = (p.row * h.heads + p.head) * h.dim + p.column;
  p.scale = i;
  return p;
}

template <int Row, int Threads>
__global__ void __launch_bounds__(Threads) unit_heads_kernel(UnitHeads h, const bf16* qk) {
  const UnitPart p = unit_part<Row, Threads>(h);
  Vector v = p.inside ? load(qk + p.packed) : Vector{};
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kVector; ++j) squares += v.x[j] * v.x[j];
  const float scale = rsqrtf(row_sum<Row>(squares) + kUnitEpsilon);
#pragma unroll
  for (int j = 0; j < kVector; ++j) v.x[j] *= scale;
  if (!p.inside) return;
  store((p.which == 0 ? h.q : h.k) + p.own, v);
  if (p.column == 0) h.scale[p.scale] = scale;
}

// dx = r (dy - y (y . dy)).
template <int Row, int Threads>
__global__ void __launch_bounds__(Threads)
    unit_heads_backward_kernel(bf16* dqk, const bf16* dq, const bf16* dk, UnitHeads h) {
  const UnitPart p = unit_part<Row, Threads>(h);
  Vector y = {}, d = {};
  if (p.inside) {
    y = load((p.which == 0 ? h.q : h.k) + p.own);
    d = load((p.which == 0 ? dq : dk) + p.own);
  }
  float product = 0;
#pragma unroll
  for (int j = 0; j < kVector; ++j) product += y.x[j] * d.x[j];
  product = row_sum<Row>(product);
  if (!p.inside) return;
  const float scale = h.scale[p.scale];
#pragma unroll
  for (int j = 0; j < kVector; ++j) d.x[j] = scale * (d.x[j] - y.x[j] * product);
  store(dqk + p.packed, d);
}

// Of one token and head.
struct Gates {
  float a, strength, rate;  // the decay's input; -exp(a_log)
};
__device__ Gates gates_at(const DecayGates& g, std::int64_t row, std::int64_t head) {
  const bf16* const p = g.projected + row * g.columns.stride;
  return {static_cast<float>(p[strength_column(g.columns, head, true)]) +
              static_cast<float>(g.dt_bias[head]),
          sigmoid(static_cast<float>(p[strength_column(g.columns, head, false)])),
          -expf(static_cast<float>(g.a_log[head]))};
}

__global__ void __launch_bounds__(kThreads)
    decay_gates_kernel(float* decay, bf16* strength, DecayGates g) {
  const std::int64_t i = thread_index(), heads = g.columns.heads;
  if (i >= g.rows * heads) return;
  const Gates gates = gates_at(g, i / heads, i % heads);
  decay[i] = gates.rate * softplus(gates.a);
  strength[i] = __float2bfloat16_rn(gates.strength);
}

// A block a head: heads are few and tokens many.
__global__ void __launch_bounds__(kThreads)
    decay_gates_backward_kernel(bf16* dstrengths, float* d_dt_bias, float* d_a_log,
                                const float* ddecay, const bf16* dstrength, DecayGates g) {
  const std::int64_t head = blockIdx.x, heads = g.columns.heads;
  float of_bias = 0, of_log = 0;
  for (std::int64_t row = threadIdx.x; row < g.rows; row += kThreads) {
    const Gates gates = gates_at(g, row, head);
    const float d = ddecay[row * heads + head] * gates.rate;
    const float da = d * sigmoid(gates.a);
    const float db =
        static_cast<float>(dstrength[row * heads + head]) * gates.strength * (1 - gates.strength);
    bf16* const to = dstrengths + row * 2 * heads + head;
    to[0] = __float2bfloat16_rn(db);
    to[heads] = __float2bfloat16_rn(da);
    of_bias += da;
    of_log += d * softplus(gates.a);
  }
  of_bias = block_sum<kThreads>(of_bias);
  of_log = block_sum<kThreads>(of_log);
  if (threadIdx.x > 0) return;
  if (d_dt_bias != nullptr) d_dt_bias[head] += of_bias;
  if (d_a_log != nullptr) d_a_log[head] += of_log;
}

// A thread for eight channels or gates, or for one strength or decay, of a row.
__global__ void __launch_bounds__(kThreads)
    arrange_kernel(bf16* projected, const bf16* channels, const bf16* gates, const bf16* strengths,
                   ProjectedColumns p, std::int64_t num_channels, std::int64_t rows) {
  const std::int64_t values = p.heads * p.value_dim;
  const std::int64_t of_channels = num_channels / kVector, of_gates = values / kVector;
  const std::int64_t units = of_channels + of_gates + 2 * p.heads;
  const std::int64_t i = thread_index(), row = i / units, unit = i % units;
  if (row >= rows) return;
  bf16* const to = projected + row * p.stride;
  if (unit < of_channels) {
    const std::int64_t c = unit * kVector;
    *reinterpret_cast<uint4*>(to + channel_column(p, c)) =
        load_bits(channels + row * num_channels + c);
  } else if (unit < of_channels + of_gates) {
    const std::int64_t c = (unit - of_channels) * kVector;
    *reinterpret_cast<uint4*>(to + gate_column(p, c)) = load_bits(gates + row * values + c);
  } else {
    const std::int64_t c = unit - of_channels - of_gates;
    to[strength_column(p, c % p.heads, c >= p.heads)] = strengths[row * 2 * p.heads + c];
  }
}

}  // namespace

void unit_heads(const UnitHeads& heads, const bf16* qk, cudaStream_t stream) {
  with_head_shape(heads.dim, [&](auto shape) {
    using S = decltype(shape);
    const auto blocks =
        static_cast<unsigned>(ceil_div(2 * heads.rows * heads.heads, S::kThreads / S::kRow));
    unit_heads_kernel<S::kRow, S::kThreads><<<blocks, S::kThreads, 0, stream>>>(heads, qk);
  });
}

void unit_heads_backward(bf16* dqk, const bf16* dq, const bf16* dk, const UnitHeads& heads,
                         cudaStream_t stream) {
  with_head_shape(heads.dim, [&](auto shape) {
    using S = decltype(shape);
    const auto blocks =
        static_cast<unsigned>(ceil_div(2 * heads.rows * heads.heads, S::kThreads / S::kRow));
    unit_heads_backward_kernel<S::kRow, S::kThreads>
        <<<blocks, S::kThreads, 0, stream>>>(dqk, dq, dk, heads);
  });
}

void decay_gates(float* decay, bf16* strength, const DecayGates& gates, cudaStream_t stream) {
  decay_gates_kernel<<<blocks_for(gates.rows * gates.columns.heads), kThreads, 0, stream>>>(
      decay, strength, gates);
}

void decay_gates_backward(bf16* dstrengths, float* d_dt_bias, float* d_a_log, const float* ddecay,
                          const bf16* dstrength, const DecayGates& gates, cudaStream_t stream) {
  decay_gates_backward_kernel<<<static_cast<unsigned>(gates.columns.heads), kThreads, 0, stream>>>(
      dstrengths, d_dt_bias, d_a_log, ddecay, dstrength, gates);
}

void arrange_projected(bf16* projected, const bf16* channels, const bf16* gates,
                       const bf16* strengths, const ProjectedColumns& columns, std::int64_t rows,
                       cudaStream_t stream) {
  const std::int64_t values = columns.heads * columns.value_dim;
  const std::int64_t num_channels = columns.stride - values - 2 * columns.heads;
  const std::int64_t units = (num_channels + values) / kVector + 2 * columns.heads;
  arrange_kernel<<<blocks_for(rows * units), kThreads, 0, stream>>>(
      projected, channels, gates, strengths, columns, num_channels, rows);
}

}  // namespace qplan::kernels
