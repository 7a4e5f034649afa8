// Gated DeltaNet: the convolution that it shares with Mamba-2, decays and strengths, the rule, and
// the gated norm of what it gives.

#include "executor/cuda/ops.h"
#include "kernels/recurrent.h"
#include "models/error.h"

namespace qplan {
namespace {

// Of a rank's heads.
kernels::ProjectedColumns delta_columns(const CudaRank& rank) {
  const DeltaNetSpec& d = *rank.job.model.delta_net;
  const std::int64_t tp = rank.job.plan.tp;
  const std::int64_t keys = d.key_dim() / tp, values = d.value_dim() / tp;
  kernels::ProjectedColumns columns{.stride = 2 * keys + 2 * values + 2 * d.num_value_heads / tp,
                                    .channels = 0,
                                    .gates = 2 * keys + values,
                                    .strengths = 2 * keys + 2 * values,
                                    .heads = d.num_value_heads / tp,
                                    .value_dim = d.value_head_dim};
  if (d.packed_projections) {
    columns.key_heads = d.num_key_heads / tp;
    columns.key_dim = d.key_head_dim;
  }
  return columns;
}

kernels::ProjectedColumns mamba_columns(const CudaRank& rank) {
  const MambaSpec& m = *rank.job.model.mamba;
  const std::int64_t tp = rank.job.plan.tp;
  return {.stride = m.projected() / tp, .channels = m.inner() / tp};
}

kernels::Rows walked_rows(const CudaRank& rank, std::int64_t rows) {
  return {rows / rank.job.plan.seq_len, rank.job.plan.seq_len};
}

const kernels::bf16* weight_in(const CudaRank& rank, const Command& c, const Operand& weights,
                               ParameterRole role) {
  return bf16_of(parameter_in(rank.tensor(c, weights), parameter_with(rank, c, role)));
}

}  // namespace

// {projected, weights} -> {convolved}; {projected, d convolved, weights} -> {d channels,
// gradients}, or into their columns of all that the projection made.
void launch_convolution(CudaRank& rank, const Command& c, bool backward, cudaStream_t stream) {
  const bool mamba = rank.shape(c.instance).layer.mixer == Mixer::mamba;
  const PackedParameter& p = parameter_with(rank, c, ParameterRole::linear_conv);
  const PackedParameter* const bias = bias_of(rank, c, p);
  const Tensor x = rank.tensor(c, c.reads[0]);
  const Tensor weights = rank.tensor(c, c.reads[backward ? 2 : 1]);
  const kernels::Convolution conv{
      .x = bf16_of(x),
      .weight = bf16_of(parameter_in(weights, p)),
      .bias = bias != nullptr ? bf16_of(parameter_in(weights, *bias)) : nullptr,
      .columns = mamba ? mamba_columns(rank) : delta_columns(rank),
      .rows = walked_rows(rank, x.rows),
      .channels = p.rows};
  QPLAN_CHECK(conv.columns.stride == x.cols, "a projection's row has all that is read of it");
  if (!backward) {
    return kernels::causal_conv(bf16_of(rank.tensor(c, c.writes[0])), conv, stream);
  }
  const Tensor dx = rank.tensor(c, c.writes[0]);
  const std::int64_t first = dx.cols == conv.channels ? 0 : conv.columns.channels;
  kernels::causal_conv_backward(bf16_of(dx) + first, dx.cols, gradient_of(rank, c, p),
                                bias != nullptr ? gradient_of(rank, c, *bias) : nullptr,
                                bf16_of(rank.tensor(c, c.reads[1])), conv,
                                static_cast<float*>(rank.scratch()), stream);
}

// {q|k} -> {q, k, scales}; {dq, dk, q, k, scales} -> {dq|dk}.
void launch_unit_heads(CudaRank& rank, const Command& c, bool backward, cudaStream_t stream) {
  const auto at = [&](const Operand& operand) { return bf16_of(rank.tensor(c, operand)); };
  const Operand &q = backward ? c.reads[2] : c.writes[0], &k = backward ? c.reads[3] : c.writes[1];
  const Tensor scale = rank.tensor(c, backward ? c.reads[4] : c.writes[2]);
  const kernels::UnitHeads heads{.q = at(q),
                                 .k = at(k),
                                 .scale = float_of(scale),
                                 .rows = scale.rows,
                                 .heads = scale.cols / 2,
                                 .dim = rank.job.model.delta_net->key_head_dim};
  if (!backward) return kernels::unit_heads(heads, at(c.reads[0]), stream);
  kernels::unit_heads_backward(at(c.writes[0]), at(c.reads[0]), at(c.reads[1]), heads, stream);
}

// {projected, weights} -> {decays, strengths}; {projected, d decays, d strengths, weights} ->
// {d strengths | d decays' input, gradients}.
void launch_decay_gates(CudaRank& rank, const Command& c, bool backward, cudaStream_t stream) {
  const auto at = [&](const Operand& operand) { return rank.tensor(c, operand); };
  const Operand& weights = c.reads[backward ? 3 : 1];
  const kernels::DecayGates gates{
      .projected = bf16_of(at(c.reads[0])),
      .dt_bias = weight_in(rank, c, weights, ParameterRole::linear_dt_bias),
      .a_log = weight_in(rank, c, weights, ParameterRole::linear_a_log),
      .columns = delta_columns(rank),
      .rows = at(c.reads[0]).rows};
  if (!backward) {
    return kernels::decay_gates(float_of(at(c.writes[0])), bf16_of(at(c.writes[1])), gates, stream);
  }
  const auto gradient = [&](ParameterRole role) {
    return gradient_of(rank, c, parameter_with(rank, c, role));
  };
  kernels::decay_gates_backward(bf16_of(at(c.writes[0])), gradient(ParameterRole::linear_dt_bias),
                                gradient(ParameterRole::linear_a_log), float_of(at(c.reads[1])),
                                bf16_of(at(c.reads[2])), gates, stream);
}

// RMSNorm of each head, times the SiLU of a gate: {out, projected, weights} -> {gated}; {d gated,
// out, projected, weights} -> {d out, d gate, gradients}.
void launch_gated_norm(CudaRank& rank, const Command& c, bool backward, cudaStream_t stream) {
  const auto at = [&](const Operand& operand) { return bf16_of(rank.tensor(c, operand)); };
  const std::size_t first = backward ? 1 : 0;
  const kernels::GatedNorm norm{
      .x = at(c.reads[first]),
      .projected = at(c.reads[first + 1]),
      .w = weight_in(rank, c, c.reads[first + 2], ParameterRole::linear_norm),
      .columns = delta_columns(rank),
      .rows = rank.tensor(c, c.reads[first]).rows,
      .eps = epsilon_of(rank)};
  if (!backward) return kernels::gated_norm(at(c.writes[0]), norm, stream);
  const PackedParameter& p = parameter_with(rank, c, ParameterRole::linear_norm);
  kernels::gated_norm_backward(at(c.writes[0]), at(c.writes[1]), gradient_of(rank, c, p),
                               at(c.reads[0]), norm, static_cast<float*>(rank.scratch()), stream);
}

// {q, k, v, decays, strengths} -> {out, scratch}; {q, k, v, decays, strengths, dout} -> {dq, dk,
// dv, d decays, d strengths, scratch}.
void launch_delta_rule(CudaRank& rank, const Command& c, const GatedDeltaRule& work,
                       cudaStream_t stream) {
  const auto at = [&](const Operand& operand) { return bf16_of(rank.tensor(c, operand)); };
  const kernels::DeltaRule rule{.batch = work.batch,
                                .seq_len = work.seq_len,
                                .key_heads = work.key_heads,
                                .value_heads = work.value_heads,
                                .key_dim = work.key_dim,
                                .value_dim = work.value_dim,
                                .q = at(c.reads[0]),
                                .k = at(c.reads[1]),
                                .v = at(c.reads[2]),
                                .decay = float_of(rank.tensor(c, c.reads[3])),
                                .strength = at(c.reads[4])};
  if (work.pass == Pass::forward) {
    return kernels::delta_rule(at(c.writes[0]), rule, at(c.writes[1]), stream);
  }
  const kernels::DeltaRuleGradients gradients{at(c.writes[0]), at(c.writes[1]), at(c.writes[2]),
                                              float_of(rank.tensor(c, c.writes[3])),
                                              at(c.writes[4])};
  kernels::delta_rule_backward(gradients, rule, at(c.reads[5]), at(c.writes[5]), stream);
}

// {a, b} -> {a|b}, {a|b} -> {a, b}; {d channels, d gate, d strengths} -> what the projection made.
void launch_beside(CudaRank& rank, const Command& c, cudaStream_t stream) {
  const auto at = [&](const Operand& operand) { return rank.tensor(c, operand); };
  const bool together = c.writes.count == 1;
  const Tensor wide = at(together ? c.writes[0] : c.reads[0]);
  if (c.reads.count == 3) {
    return kernels::arrange_projected(bf16_of(wide), bf16_of(at(c.reads[0])),
                                      bf16_of(at(c.reads[1])), bf16_of(at(c.reads[2])),
                                      delta_columns(rank), wide.rows, stream);
  }
  std::int64_t first = 0;
  for (const Operand& operand : together ? c.reads : c.writes) {
    const Tensor own = at(operand);
    if (together) {
      copy_columns(own, 0, wide, first, own.cols, stream);
    } else {
      copy_columns(wide, first, own, 0, own.cols, stream);
    }
    first += own.cols;
  }
}

}  // namespace qplan
