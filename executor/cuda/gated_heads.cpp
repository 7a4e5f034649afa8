// Attention behind a gate: queries that lie beside their gates in what the projection makes, norms
// of their heads, and the gates themselves, those of shared experts among them.

#include "executor/cuda/ops.h"
#include "executor/io/weights.h"
#include "models/error.h"

namespace qplan {
namespace {

// A row of what the projection makes: each head's query and its gate, then keys, then values.
struct GatedRow {
  std::int64_t q = 0, kv = 0, dim = 0;
  [[nodiscard]] std::int64_t cols() const { return (2 * q + 2 * kv) * dim; }
  [[nodiscard]] kernels::Lines queries() const { return {q, cols(), 2 * dim}; }
  [[nodiscard]] kernels::Lines keys() const { return {kv, cols()}; }
  [[nodiscard]] std::int64_t gate_begin() const { return dim; }
  [[nodiscard]] std::int64_t key_begin() const { return 2 * q * dim; }
  [[nodiscard]] std::int64_t value_begin() const { return (2 * q + kv) * dim; }
};

GatedRow gated_row(const CudaRank& rank) {
  const ModelSpec& m = rank.job.model;
  const int tp = rank.job.plan.tp;
  return {m.num_attention_heads / tp, m.num_key_value_heads / tp, m.head_dim};
}

// Heads of their own rows.
kernels::Lines dense(std::int64_t heads, std::int64_t dim) {
  return {heads, heads * dim};
}

}  // namespace

// {x, gates} -> {y}; {dy, x, gates} -> {dx, dgates}: gates as x, or one a row.
void launch_gate(CudaRank& rank, const Command& c, bool backward, cudaStream_t stream) {
  const auto at = [&](const Operand& operand) { return bf16_of(rank.tensor(c, operand)); };
  const Tensor x = rank.tensor(c, c.reads[backward ? 1 : 0]);
  const Tensor gates = rank.tensor(c, c.reads[backward ? 2 : 1]);
  const bool each = gates.cols > 1;
  if (!backward && each) {
    kernels::gate(at(c.writes[0]), bf16_of(x), bf16_of(gates), x.elements(), stream);
  } else if (!backward) {
    kernels::gate_rows(at(c.writes[0]), bf16_of(x), bf16_of(gates), x.rows, x.cols, stream);
  } else if (each) {
    kernels::gate_backward(at(c.writes[0]), at(c.writes[1]), at(c.reads[0]), bf16_of(x),
                           bf16_of(gates), x.elements(), stream);
  } else {
    kernels::gate_rows_backward(at(c.writes[0]), at(c.writes[1]), at(c.reads[0]), bf16_of(x),
                                bf16_of(gates), x.rows, x.cols, stream);
  }
}

// {q and gates|k|v} -> {gates}, or {q, k, v}.
void launch_gated_heads(CudaRank& rank, const Command& c, cudaStream_t stream) {
  const GatedRow row = gated_row(rank);
  const Tensor packed = rank.tensor(c, c.reads[0]);
  const kernels::bf16* const from = bf16_of(packed);
  QPLAN_CHECK(packed.cols == row.cols(), "a packed row has queries, gates, keys and values");
  const auto take = [&](std::size_t to, std::int64_t begin, std::int64_t heads,
                        kernels::Lines lines) {
    kernels::copy_lines(bf16_of(rank.tensor(c, c.writes[to])), dense(heads, row.dim), from + begin,
                        lines, packed.rows * heads, row.dim, stream);
  };
  if (c.op->role == Role::gate) return take(0, row.gate_begin(), row.q, row.queries());
  take(0, 0, row.q, row.queries());
  take(1, row.key_begin(), row.kv, row.keys());
  take(2, row.value_begin(), row.kv, row.keys());
}

// {q, k, weights} -> {q|k}; {dq|dk, q, k, dv, dgates, weights} -> {dq and dgates|dk|dv, gradients}.
void launch_head_norms(CudaRank& rank, const Command& c, bool backward, cudaStream_t stream) {
  const auto at = [&](const Operand& operand) { return bf16_of(rank.tensor(c, operand)); };
  const GatedRow row = gated_row(rank);
  const auto& table = rank.block(c).parameters;
  const auto id = static_cast<std::size_t>(c.op->parameter);
  QPLAN_CHECK(table[id + 1].whole.role == ParameterRole::k_norm, "k_norm is packed behind q_norm");
  const Tensor q = rank.tensor(c, c.reads[backward ? 1 : 0]);
  const Tensor weights = rank.tensor(c, c.reads[backward ? 5 : 2]);
  const float centre = norm_around_zero(rank.job.model) ? 1.0F : 0.0F;
  const std::int64_t width = (row.q + row.kv) * row.dim;  // of a row {q|k}
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    const std::int64_t heads = i == 0 ? row.q : row.kv;
    const kernels::Lines own = dense(heads, row.dim), both{heads, width};
    const std::int64_t begin = i == 0 ? 0 : row.q * row.dim;
    const kernels::bf16* const weight = bf16_of(parameter_in(weights, table[id + i]));
    const kernels::bf16* const x = at(c.reads[(backward ? 1 : 0) + i]);
    if (!backward) {
      kernels::rms_norm(at(c.writes[0]) + begin, both, x, own, weight, q.rows * heads, row.dim,
                        epsilon_of(rank), stream, centre);
      continue;
    }
    kernels::bf16* const dx = at(c.writes[0]) + (i == 0 ? 0 : row.key_begin());
    kernels::rms_norm_backward(
        {dx, gradient_of(rank, c, table[id + i]), x, at(c.reads[0]) + begin, weight, nullptr,
         i == 0 ? row.queries() : row.keys(), own, both, centre},
        q.rows * heads, row.dim, epsilon_of(rank), static_cast<float*>(rank.scratch()), stream,
        row_order(rank));
  }
  if (!backward) return;
  kernels::bf16* const packed = at(c.writes[0]);
  kernels::copy_lines(packed + row.value_begin(), row.keys(), at(c.reads[3]),
                      dense(row.kv, row.dim), q.rows * row.kv, row.dim, stream);
  kernels::copy_lines(packed + row.gate_begin(), row.queries(), at(c.reads[4]),
                      dense(row.q, row.dim), q.rows * row.q, row.dim, stream);
}

}  // namespace qplan
