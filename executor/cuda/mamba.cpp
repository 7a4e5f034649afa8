// Mamba-2: the scan and its gate, and the norm of each group of heads. The projection makes gate,
// x, B, C and step sizes, side by side.

#include "executor/cuda/ops.h"
#include "kernels/recurrent.h"

namespace qplan {

// {projected, x|B|C, weights} -> {out, out times the SiLU of the gate, scratch}; {projected, x|B|C,
// out, d of the gated, weights} -> {d x|B|C, d projected, scratch, gradients}: of d projected the
// gate's and the steps' columns.
void launch_scan(CudaRank& rank, const Command& c, const StateSpaceScan& work,
                 cudaStream_t stream) {
  const auto at = [&](const Operand& operand) { return bf16_of(rank.tensor(c, operand)); };
  const bool backward = work.pass == Pass::backward;
  const Tensor weights = rank.tensor(c, c.reads[backward ? 4 : 2]);
  const auto weight = [&](ParameterRole role) {
    return bf16_of(parameter_in(weights, parameter_with(rank, c, role)));
  };
  const kernels::Scan scan{.batch = work.batch,
                           .seq_len = work.seq_len,
                           .heads = work.heads,
                           .groups = work.groups,
                           .head_dim = work.head_dim,
                           .state_size = work.state_size,
                           .step_min = static_cast<float>(rank.job.model.mamba->step_min),
                           .projected = at(c.reads[0]),
                           .xbc = at(c.reads[1]),
                           .dt_bias = weight(ParameterRole::linear_dt_bias),
                           .a_log = weight(ParameterRole::linear_a_log),
                           .skip = weight(ParameterRole::mamba_skip)};
  if (!backward) {
    return kernels::scan(at(c.writes[0]), at(c.writes[1]), scan, at(c.writes[2]), stream);
  }
  const auto gradient = [&](ParameterRole role) {
    return gradient_of(rank, c, parameter_with(rank, c, role));
  };
  const kernels::ScanGradients gradients{
      at(c.writes[0]), at(c.writes[1]), gradient(ParameterRole::linear_dt_bias),
      gradient(ParameterRole::linear_a_log), gradient(ParameterRole::mamba_skip)};
  kernels::scan_backward(gradients, scan, at(c.reads[2]), at(c.reads[3]), at(c.writes[2]), stream);
}

// RMSNorm of each group's columns: {gated, weights} -> {normed}; {gated, d normed, weights} ->
// {d gated, gradients}.
void launch_group_norm(CudaRank& rank, const Command& c, bool backward, cudaStream_t stream) {
  const auto at = [&](const Operand& operand) { return bf16_of(rank.tensor(c, operand)); };
  const std::int64_t groups = rank.job.model.mamba->num_groups / rank.job.plan.tp;
  const Tensor x = rank.tensor(c, c.reads[0]);
  const std::int64_t cols = x.cols / groups;
  const kernels::Lines lines{1, x.cols};
  const PackedParameter& p = parameter_with(rank, c, ParameterRole::linear_norm);
  const kernels::bf16* const weight =
      bf16_of(parameter_in(rank.tensor(c, c.reads[backward ? 2 : 1]), p));
  float* const gradient = backward ? gradient_of(rank, c, p) : nullptr;
  for (std::int64_t first = 0; first < x.cols; first += cols) {
    if (!backward) {
      kernels::rms_norm(at(c.writes[0]) + first, lines, bf16_of(x) + first, lines, weight + first,
                        x.rows, cols, epsilon_of(rank), stream);
      continue;
    }
    kernels::rms_norm_backward(
        {at(c.writes[0]) + first, gradient != nullptr ? gradient + first : nullptr,
         bf16_of(x) + first, at(c.reads[1]) + first, weight + first, nullptr, lines, lines, lines},
        x.rows, cols, epsilon_of(rank), static_cast<float*>(rank.scratch()), stream,
        row_order(rank));
  }
}

}  // namespace qplan
