// Mamba-2 in attention's place (arXiv 2405.21060), as Megatron runs it (core/ssm/mamba_mixer.py,
// Megatron-LM d98e8a64: mamba_split_conv1d_scan_combined, then a norm of each group of heads) and
// transformers' module with mamba_ssm installed (modeling_nemotron_h.py, 5.23: norm and output
// projection within the same function). Kept for backward: what that autograd function saves
// (mamba_ssm/ops/triton/ssd_combined.py, 2.3.0), the projection and the scan's output; convolution
// and the chunks' states are made again.

#include "models/program/mamba_part.h"

#include <algorithm>

namespace qplan {

// Where sequence is exchanged for heads and there are fewer groups than ranks, a group's B and C
// go to each of the ranks that share its heads.
MambaPart::Widths MambaPart::widths(int sequence_ranks) const {
  const MambaSpec& m = spec();
  const std::int64_t tp = c_.shape.tp, ranks = sequence_ranks;
  const std::int64_t groups = std::max<std::int64_t>(m.num_groups / tp, ranks) / ranks;
  return {.rows = c_.tokens * ranks,
          .inner = m.inner() / tp / ranks,
          .heads = m.num_heads / tp / ranks,
          .groups = groups,
          .shared = groups * m.state_size};
}

StateSpaceScan MambaPart::scan(Pass pass) const {
  const auto& s = c_.shape;
  const MambaSpec& m = spec();
  const Widths w = widths(s.cp);
  return {.batch = s.micro_batch_size * s.documents,
          .seq_len = s.seq_len / s.documents,
          .heads = w.heads,
          .groups = w.groups,
          .head_dim = m.head_dim,
          .state_size = m.state_size,
          .chunk = c_.recipe.kernels.own_recurrences ? kOwnChunk : m.chunk,
          .gated = !c_.recipe.kernels.fused_scan_output,
          .pass = pass,
          .own = c_.recipe.kernels.own_recurrences};
}

// Megatron's rows go by token, then sequence; the kernels' by sequence, then token.
SlotId MambaPart::turned(SlotId x, std::int64_t rows, std::int64_t cols, std::string_view name) {
  const KernelChoices& kernels = c_.recipe.kernels;
  if (kernels.fused_scan_output || kernels.rows_by_sequence || c_.shape.micro_batch_size == 1) {
    return x;
  }
  const SlotId result = c_.b.slot(name, c_.activation_dtype(), rows, cols);
  c_.rowwise(RowwiseKind::copy, rows, cols, {x}, {result});
  return result;
}

SlotId MambaPart::convolved() {
  auto& b = c_.b;
  const Widths w = widths(c_.shape.cp);
  const SlotId result = b.slot("mamba convolved", c_.activation_dtype(), w.rows, w.conv());
  c_.rowwise(RowwiseKind::mamba_conv, w.rows, w.conv(), {projected_, c_.weights}, {result})
      .parameter = b.parameter(ParameterRole::linear_conv);
  return result;
}

// C B^T in fp32, step sizes and decays, states in fp32 and in the products' format.
SlotId MambaPart::scratch(const StateSpaceScan& work) {
  const Widths w = widths(c_.shape.cp);
  if (work.own) {
    const OwnScratch own = own_scratch(work);
    return c_.b.slot("scan scratch", DType::bf16, own.rows, own.cols);
  }
  const std::int64_t state = w.inner * work.state_size / work.chunk;
  const std::int64_t forward = 2 * w.groups * work.chunk + 4 * w.heads + 3 * state;
  const std::int64_t backward =
      2 * forward + 2 * w.inner;  // ... their gradients, dB and dC in fp32
  return c_.b.slot("scan scratch", DType::bf16, w.rows,
                   work.pass == Pass::forward ? forward : backward);
}

SlotId MambaPart::norm_forward() {
  const std::int64_t width = widths(1).inner;
  const SlotId result = c_.b.slot("mamba normed", c_.activation_dtype(), c_.tokens, width);
  const bool gates = c_.recipe.kernels.fused_scan_output;
  c_.rowwise(gates ? RowwiseKind::gated_group_norm : RowwiseKind::group_norm, c_.tokens, width,
             {gated_, gates ? projected_ : kNoSlot, c_.weights}, {result})
      .parameter = c_.b.parameter(ParameterRole::linear_norm);
  return result;
}

SlotId MambaPart::forward(SlotId x) {
  auto& b = c_.b;
  const DType act = c_.activation_dtype();
  const Widths w = widths(c_.shape.cp);
  b.layer_module(LayerModule::mamba);
  x_ = x;
  const SlotId normed = b.slot("normed", act, c_.local_tokens, c_.hidden);
  eager_norm_ = c_.eager_norm_copy();
  c_.norm_forward(ParameterRole::input_norm, x, normed, c_.local_tokens, c_.hidden, eager_norm_);
  normed_ = c_.linear_input(normed, c_.local_tokens, c_.hidden);

  const std::int64_t width = spec().projected() / c_.shape.tp;
  SlotId projected = b.slot("mamba projected", act, c_.tokens, width);
  c_.gathered_linear(ParameterRole::mamba_in_proj, normed_, projected, width, c_.hidden);
  if (c_.shape.cp > 1) {
    projected = c_.exchange_heads(projected, w.projected() * c_.shape.cp, Pass::forward,
                                  "mamba by heads", kExchanged);
  }
  projected_ = turned(projected, w.rows, w.projected(), "mamba projected by sequence");

  const StateSpaceScan work = scan(Pass::forward);
  const SlotId xbc = convolved();
  out_ = b.slot("scan out", act, w.rows, w.inner);
  const SlotId gated = work.gated ? b.slot("scan gated", act, w.rows, w.inner) : kNoSlot;
  b.compute(work, {projected_, xbc, c_.weights}, {out_, gated, scratch(work)});
  gated_ = work.gated ? turned(gated, w.rows, w.inner, "scan gated by token") : out_;
  if (c_.shape.cp > 1) {
    gated_ = c_.exchange_heads(gated_, widths(1).inner, Pass::backward, "scan gated");
  }
  const SlotId normed_out = norm_forward();
  const SlotId out_in = c_.linear_input(normed_out, c_.tokens, widths(1).inner);
  if (!c_.recipe.kernels.fused_scan_output) normed_out_ = out_in;
  const SlotId sum = c_.linear_reduced(ParameterRole::linear_out_proj, out_in, c_.hidden,
                                       widths(1).inner, "mamba sum");
  const SlotId y = b.slot("x2", c_.hidden_dtype(), c_.local_tokens, c_.hidden);
  c_.rowwise(RowwiseKind::add, c_.local_tokens, c_.hidden, {sum, x}, {y});
  return y;
}

SlotId MambaPart::backward(SlotId dy) {
  auto& b = c_.b;
  const DType act = c_.activation_dtype();
  const Widths w = widths(c_.shape.cp);
  const std::int64_t width = widths(1).inner;
  b.layer_module(LayerModule::mamba);
  const SlotId dy_in = c_.linear_input(dy, c_.local_tokens, c_.hidden, Pass::backward);
  const SlotId dy_whole = c_.gather_sequence(dy_in);
  const SlotId dnormed_out = b.slot("d mamba normed", act, c_.tokens, width);
  c_.linear_dgrad(ParameterRole::linear_out_proj, dy_whole, dnormed_out, c_.tokens, c_.hidden,
                  width);
  // Made again by the kernel of the norm's gradient, at no price of its own.
  if (c_.recipe.kernels.fused_scan_output) {
    normed_out_ = b.slot("mamba normed again", act, c_.tokens, width);
  }
  const SlotId remade = c_.recipe.kernels.fused_scan_output ? normed_out_ : kNoSlot;
  dprojected_ = b.slot("d mamba projected", act, w.rows, w.projected());
  SlotId dout = b.slot("d scan gated", act, c_.tokens, width);
  const bool gates = c_.recipe.kernels.fused_scan_output;
  c_.rowwise(RowwiseKind::group_norm_backward, c_.tokens, width,
             {gated_, gates ? projected_ : kNoSlot, dnormed_out, c_.weights_backward},
             {dout, remade, gates ? dprojected_ : kNoSlot, c_.gradients})
      .parameter = b.parameter(ParameterRole::linear_norm);
  c_.linear_wgrad(ParameterRole::linear_out_proj, dy_whole, normed_out_, c_.tokens, c_.hidden,
                  width);
  if (c_.shape.cp > 1) {
    dout = c_.exchange_heads(dout, width, Pass::forward, "d scan gated by heads");
  }
  dout = turned(dout, w.rows, w.inner, "d scan gated by sequence");

  const StateSpaceScan work = scan(Pass::backward);
  const SlotId xbc = convolved();
  const SlotId dxbc = b.slot("d mamba convolved", act, w.rows, w.conv());
  b.compute(work, {projected_, xbc, out_, dout, c_.weights_backward},
            {dxbc, dprojected_, scratch(work), c_.gradients});
  c_.rowwise(RowwiseKind::mamba_conv_backward, w.rows, w.conv(),
             {projected_, dxbc, c_.weights_backward}, {dprojected_, c_.gradients})
      .parameter = b.parameter(ParameterRole::linear_conv);

  const SlotId dnormed = project_backward();
  const SlotId dx = b.slot("dx", c_.hidden_dtype(), c_.local_tokens, c_.hidden, Storage::wire);
  c_.norm_backward(ParameterRole::input_norm, x_, dnormed, dy, dx, c_.local_tokens, c_.hidden,
                   eager_norm_);
  return dx;
}

// As of any column-parallel layer (AttentionPart::project_backward).
SlotId MambaPart::project_backward() {
  auto& b = c_.b;
  const Widths w = widths(c_.shape.cp);
  const std::int64_t width = spec().projected() / c_.shape.tp;
  SlotId dprojected = turned(dprojected_, w.rows, w.projected(), "d mamba projected by token");
  if (c_.shape.cp > 1) {
    dprojected = c_.exchange_heads(dprojected, w.projected() * c_.shape.cp, Pass::backward,
                                   "d mamba projected", kExchanged);
  }
  dprojected = c_.linear_input(dprojected, c_.tokens, width, Pass::backward);
  const SlotId whole = c_.gather_sequence_again(normed_, /*wait=*/false);
  const SlotId partial = b.slot("dnormed partial", c_.activation_dtype(), c_.tokens, c_.hidden);
  c_.linear_dgrad(ParameterRole::mamba_in_proj, dprojected, partial, c_.tokens, width, c_.hidden);
  if (whole != normed_) {
    b.wait_for(Stream::model_comm);
    b.flush();
  }
  const SlotId dnormed = c_.reduce_input_gradient(partial, "dnormed");
  c_.linear_wgrad(ParameterRole::mamba_in_proj, dprojected, whole, c_.tokens, width, c_.hidden);
  if (c_.shape.tp > 1) b.wait_for(Stream::model_comm);
  return dnormed;
}

}  // namespace qplan
