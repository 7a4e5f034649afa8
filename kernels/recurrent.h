#pragma once
// Kernels of layers that carry a state from token to token: Gated DeltaNet and Mamba-2. As those of
// kernels.h; heads' widths are multiples of 8 and at most 128 numbers, and a rank's heads, its step
// sizes and strengths, come in numbers that keep rows on 16 bytes.

#include "kernels/kernels.h"

namespace qplan::kernels {

// Tokens that a convolution sees.
inline constexpr std::int64_t kConvTaps = 4;
// Tokens that the delta rule and the scan take at once; scratch is given in bf16 numbers for each
// token and head, of sequences that are whole chunks.
inline constexpr std::int64_t kChunkTokens = 64;

// Where in a row of what a layer's projection makes its parts begin: what the convolution reads,
// the gate, strengths and decays. Side by side; or with `key_heads` by key head: its query, its
// key, the values that it serves and their gates, and behind all heads each one's strengths and
// decays (Qwen3-Next).
struct ProjectedColumns {
  std::int64_t stride = 0;  // of a row
  std::int64_t channels = 0, gates = 0, strengths = 0;
  std::int64_t heads = 0;  // value heads: so many strengths, then as many decays
  std::int64_t key_heads = 0, key_dim = 0, value_dim = 0;
};

// ---- the convolution before the delta rule and before the scan ----

// Sequences of `length` tokens, one behind the other.
struct Rows {
  std::int64_t batch = 1, length = 0;
};
// y[t, c] = silu(bias[c] + sum over j of weight[c, j] x[t - 3 + j, c]); x: columns of what the
// projection made; y (rows, channels); weight (channels, 4), bias (channels) or null.
struct Convolution {
  const bf16 *x = nullptr, *weight = nullptr, *bias = nullptr;
  ProjectedColumns columns;
  Rows rows;
  std::int64_t channels = 0;
};
void causal_conv(bf16* y, const Convolution& conv, cudaStream_t stream);
// dx: rows of `dx_stride` numbers; dweight and dbias are added to, null: not wanted.
void causal_conv_backward(bf16* dx, std::int64_t dx_stride, float* dweight, float* dbias,
                          const bf16* dy, const Convolution& conv, float* scratch,
                          cudaStream_t stream);

// ---- Gated DeltaNet (executor/math/delta_rule.h) ----

// Queries and keys {q|k} become rows of length 1, head by head; scale (rows, 2 heads).
struct UnitHeads {
  bf16 *q = nullptr, *k = nullptr;
  float* scale = nullptr;
  std::int64_t rows = 0, heads = 0, dim = 0;
};
void unit_heads(const UnitHeads& heads, const bf16* qk, cudaStream_t stream);
void unit_heads_backward(bf16* dqk, const bf16* dq, const bf16* dk, const UnitHeads& heads,
                         cudaStream_t stream);

// decay = -exp(a_log) softplus(a + dt_bias), strength = sigmoid(b), of (rows, heads).
struct DecayGates {
  const bf16 *projected = nullptr, *dt_bias = nullptr, *a_log = nullptr;
  ProjectedColumns columns;
  std::int64_t rows = 0;
};
void decay_gates(float* decay, bf16* strength, const DecayGates& gates, cudaStream_t stream);
// dstrengths: {db|da}, (rows, 2 heads); d_dt_bias and d_a_log are added to, null: not wanted.
void decay_gates_backward(bf16* dstrengths, float* d_dt_bias, float* d_a_log, const float* ddecay,
                          const bf16* dstrength, const DecayGates& gates, cudaStream_t stream);

// {d channels, d gate, d strengths} in the columns of what the projection made.
void arrange_projected(bf16* projected, const bf16* channels, const bf16* gates,
                       const bf16* strengths, const ProjectedColumns& columns, std::int64_t rows,
                       cudaStream_t stream);

struct DeltaRule {
  std::int64_t batch = 1, seq_len = 0, key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  const bf16 *q = nullptr, *k = nullptr, *v = nullptr;
  const float* decay = nullptr;
  const bf16* strength = nullptr;
};
// scratch: value_heads (key_dim + value_dim + key_dim value_dim / 64 + 10).
void delta_rule(bf16* out, const DeltaRule& rule, bf16* scratch, cudaStream_t stream);
struct DeltaRuleGradients {
  bf16 *dq = nullptr, *dk = nullptr, *dv = nullptr;
  float* ddecay = nullptr;
  bf16* dstrength = nullptr;
};
// scratch: value_heads (key_dim + 2 value_dim + 64 + 2 key_dim value_dim / 64 + 10).
void delta_rule_backward(const DeltaRuleGradients& gradients, const DeltaRule& rule,
                         const bf16* dout, bf16* scratch, cudaStream_t stream);

// y = x / sqrt(mean(x^2) + eps) w silu(gate), head by head of (rows, heads * value_dim); the gates
// lie in what the projection made; w: (value_dim).
struct GatedNorm {
  const bf16 *x = nullptr, *projected = nullptr, *w = nullptr;
  ProjectedColumns columns;
  std::int64_t rows = 0;
  float eps = 0;
};
void gated_norm(bf16* y, const GatedNorm& norm, cudaStream_t stream);
// dgate as x; dw is added to, null: not wanted.
void gated_norm_backward(bf16* dx, bf16* dgate, float* dw, const bf16* dy, const GatedNorm& norm,
                         float* scratch, cudaStream_t stream);

// ---- Mamba-2 (executor/math/scan.h) ----

// A row of `projected` is {gate | x|B|C before the convolution | step sizes}, of xbc {x|B|C}.
struct Scan {
  std::int64_t batch = 1, seq_len = 0, heads = 0, groups = 0, head_dim = 0, state_size = 0;
  float step_min = 0;
  const bf16 *projected = nullptr, *xbc = nullptr;
  const bf16 *dt_bias = nullptr, *a_log = nullptr, *skip = nullptr;
};
// gated = out silu(gate). scratch: heads (head_dim state_size / 64 + 10).
void scan(bf16* out, bf16* gated, const Scan& scan, bf16* scratch, cudaStream_t stream);
// Of dprojected the gate's and the steps' columns; the three sums are added to, null: not wanted.
struct ScanGradients {
  bf16 *dxbc = nullptr, *dprojected = nullptr;
  float *d_dt_bias = nullptr, *d_a_log = nullptr, *dskip = nullptr;
};
// scratch: heads (2 head_dim state_size / 64 + head_dim + 4 state_size + 11).
void scan_backward(const ScanGradients& gradients, const Scan& scan, const bf16* out,
                   const bf16* dgated, bf16* scratch, cudaStream_t stream);

}  // namespace qplan::kernels
