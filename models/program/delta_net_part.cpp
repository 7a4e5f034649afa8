// Gated DeltaNet in attention's place (arXiv 2412.06464), as Megatron runs it
// (core/ssm/gated_delta_net, Megatron-LM d98e8a64) and Hugging Face's modules with the kernels of
// flash-linear-attention and causal_conv1d installed (modeling_qwen3_next.py, transformers 5.23).
// Kept for backward: what those modules and fla's autograd functions save (bc3b101d).

#include "models/program/delta_net_part.h"

namespace qplan {

DeltaNetPart::Widths DeltaNetPart::widths(int sequence_ranks) const {
  const std::int64_t share = std::int64_t{c_.shape.tp} * sequence_ranks;
  const DeltaNetSpec& d = spec();
  return {c_.tokens * sequence_ranks, d.key_dim() / share, d.value_dim() / share,
          d.num_value_heads / share};
}

// Of this rank: queries, keys, values and gate, strengths and decays.
LayerContext::Widths DeltaNetPart::projections() const {
  const Widths w = widths(1);
  if (spec().packed_projections) return {w.conv() + w.value, 2 * w.heads};
  return {w.conv(), w.value, w.heads, w.heads};
}

std::int64_t DeltaNetPart::projected_width() const {
  const Widths w = widths(1);
  return w.conv() + w.value + 2 * w.heads;
}

ParameterRole DeltaNetPart::projection() const {
  return spec().packed_projections ? ParameterRole::linear_qkvz_proj
                                   : ParameterRole::linear_qkv_proj;
}

GatedDeltaRule DeltaNetPart::rule(Pass pass) const {
  const auto& s = c_.shape;
  const DeltaNetSpec& d = spec();
  const std::int64_t share = std::int64_t{s.tp} * s.cp;
  const std::int64_t key_heads =
      c_.recipe.kernels.expands_key_heads ? d.num_value_heads : d.num_key_heads;
  return {.batch = s.micro_batch_size * s.documents,
          .seq_len = s.seq_len / s.documents,
          .key_heads = key_heads / share,
          .value_heads = d.num_value_heads / share,
          .key_dim = d.key_head_dim,
          .value_dim = d.value_head_dim,
          .chunk = c_.recipe.kernels.own_recurrences ? kOwnChunk : GatedDeltaRule{}.chunk,
          .pass = pass,
          .own = c_.recipe.kernels.own_recurrences};
}

SlotId DeltaNetPart::forward(SlotId x) {
  auto& b = c_.b;
  const DType act = c_.activation_dtype();
  const Widths w = widths(c_.shape.cp);
  x_ = x;
  const bool apart = !c_.recipe.kernels.norms_in_linears;
  if (apart) b.begin_module(RecomputeModule::layernorm);
  const SlotId normed = b.slot("normed", act, c_.local_tokens, c_.hidden);
  eager_norm_ = c_.eager_norm_copy();
  c_.norm_forward(ParameterRole::input_norm, x, normed, c_.local_tokens, c_.hidden, eager_norm_);
  normed_ = c_.linear_input(normed, c_.local_tokens, c_.hidden);
  if (apart) b.end_module(RecomputeModule::layernorm);

  project(normed_);
  prepare();

  // W, U, V' and the chunks' states are there until the kernels are through.
  const GatedDeltaRule work = rule(Pass::forward);
  const std::int64_t state = work.key_dim * work.value_dim / work.chunk;
  SlotId scratch = kNoSlot;
  if (work.own) {
    const OwnScratch own = own_scratch(work);
    scratch = b.slot("delta rule scratch", DType::bf16, own.rows, own.cols);
  } else {
    scratch = b.slot("delta rule scratch", act, w.rows,
                     w.heads * (work.key_dim + 2 * work.value_dim + state));
    inverse_ = b.slot("delta inverse", act, w.rows, w.heads * work.chunk);
  }
  out_ = b.slot("delta out", act, w.rows, w.value);
  b.compute(work, {q_, k_, v_, decay_, strength_}, {out_, inverse_, scratch});

  b.begin_module(RecomputeModule::gdn_norm_out);
  // Norm and gate apart keep the norm's result as well; eager modules four fp32 arrays' bytes: the
  // input, the gate and its SiLU in fp32, the normed rows before and after the weight in 16 bits.
  if (c_.recipe.kernels.expands_key_heads) {
    normed_out_ = b.slot("delta out normed", act, w.rows, w.value);
  }
  eager_gate_ = c_.eager_copy("gated norm in fp32", DType::fp32, w.rows, 4 * w.value);
  SlotId gated = b.slot("delta gated", act, w.rows, w.value);
  c_.rowwise(RowwiseKind::gated_norm, w.rows, w.value, {out_, gate_, c_.weights},
             {gated, normed_out_, eager_gate_})
      .parameter = b.parameter(ParameterRole::linear_norm);
  if (c_.shape.cp > 1)
    gated = c_.exchange_heads(gated, widths(1).value, Pass::backward, "delta gated");
  b.end_module(RecomputeModule::gdn_norm_out);

  gated_ = c_.linear_input(gated, c_.tokens, widths(1).value);
  const SlotId sum = c_.linear_reduced(ParameterRole::linear_out_proj, gated_, c_.hidden,
                                       widths(1).value, "delta sum");
  const SlotId y = b.slot("x2", c_.hidden_dtype(), c_.local_tokens, c_.hidden);
  c_.rowwise(RowwiseKind::add, c_.local_tokens, c_.hidden, {sum, x}, {y});
  return y;
}

void DeltaNetPart::project(SlotId normed) {
  auto& b = c_.b;
  const DType act = c_.activation_dtype();
  if (!c_.projects_apart()) {
    const std::int64_t width = projected_width();
    const SlotId projected = b.slot("delta projected", act, c_.tokens, width);
    c_.gathered_linear(projection(), normed, projected, width, c_.hidden);
    conv_in_ = c_.shape.cp > 1
                   ? c_.exchange_heads(projected, width, Pass::forward, "delta by heads")
                   : projected;
    gate_in_ = strengths_in_ = conv_in_;
    return;
  }
  const Widths w = widths(1);
  const LayerContext::Widths products = projections();
  const bool packed = spec().packed_projections;
  const SlotId first = b.slot("delta projected", act, c_.tokens, products[0]);
  conv_in_ = packed ? b.slot("delta qkv", act, c_.tokens, w.conv()) : first;
  gate_in_ = packed ? first : b.slot("delta gate", act, c_.tokens, w.value);
  strengths_in_ = b.slot("delta strengths", act, c_.tokens, 2 * w.heads);
  const SlotId whole = c_.gathered_linear(projection(), normed, first, products[0], c_.hidden);
  for (std::size_t i = 1; i < products.size(); ++i) {
    const SlotId to = !packed && i == 1 ? gate_in_ : strengths_in_;
    c_.linear(c_.packed_role(projection(), i), whole, to, c_.tokens, products[i], c_.hidden);
  }
  // Each key head's queries, keys, values and gate lie together, and are put in order.
  if (packed) c_.rowwise(RowwiseKind::copy, c_.tokens, w.conv(), {first}, {conv_in_});
}

// Convolution, decays and strengths, and the rule's operands, each an array of its own.
void DeltaNetPart::prepare() {
  auto& b = c_.b;
  const DType act = c_.activation_dtype();
  const Widths w = widths(c_.shape.cp);
  const std::int64_t key_heads = w.key / spec().key_head_dim;
  const SlotId convolved = b.slot("delta convolved", act, w.rows, w.conv());
  c_.rowwise(RowwiseKind::causal_conv, w.rows, w.conv(), {conv_in_, c_.weights}, {convolved})
      .parameter = b.parameter(ParameterRole::linear_conv);
  decay_ = b.slot("delta decay", DType::fp32, w.rows, w.heads);
  strength_ = b.slot("delta strength", act, w.rows, w.heads);
  c_.rowwise(RowwiseKind::decay_gates, w.rows, w.heads, {strengths_in_, c_.weights},
             {decay_, strength_})
      .parameter = b.parameter(ParameterRole::linear_dt_bias);

  const SlotId qk = b.slot("delta qk", act, w.rows, 2 * w.key);
  qk_scale_ = b.slot("delta qk scale", DType::fp32, w.rows, 2 * key_heads);
  v_ = b.slot("delta v", act, w.rows, w.value);
  if (!c_.recipe.kernels.expands_key_heads) {
    gate_ = gate_in_;
    q_ = b.slot("delta q", act, w.rows, w.key);
    k_ = b.slot("delta k", act, w.rows, w.key);
    c_.rowwise(RowwiseKind::copy, w.rows, w.conv(), {convolved}, {qk, v_}).role = Role::beside;
    c_.rowwise(RowwiseKind::l2_norm, w.rows, 2 * w.key, {qk}, {q_, k_, qk_scale_});
    return;
  }
  const std::int64_t expanded = w.heads * spec().key_head_dim;
  normed_qk_ = b.slot("delta qk normed", act, w.rows, 2 * w.key);
  q_ = b.slot("delta q", act, w.rows, expanded);
  k_ = b.slot("delta k", act, w.rows, expanded);
  gate_ = b.slot("delta gate", act, w.rows, w.value);
  c_.rowwise(RowwiseKind::copy, w.rows, 2 * w.key, {convolved}, {qk});
  c_.rowwise(RowwiseKind::l2_norm, w.rows, 2 * w.key, {qk}, {normed_qk_, qk_scale_});
  c_.rowwise(RowwiseKind::copy, w.rows, 2 * expanded + 2 * w.value,
             {normed_qk_, convolved, gate_in_}, {q_, k_, v_, gate_});
}

SlotId DeltaNetPart::backward(SlotId dy) {
  auto& b = c_.b;
  const DType act = c_.activation_dtype();
  const Widths w = widths(c_.shape.cp);
  const std::int64_t width = widths(1).value;
  const SlotId dy_in = c_.linear_input(dy, c_.local_tokens, c_.hidden, Pass::backward);
  const SlotId dy_whole = c_.gather_sequence(dy_in);
  SlotId dgated = b.slot("d delta gated", act, c_.tokens, width);
  c_.linear_dgrad(ParameterRole::linear_out_proj, dy_whole, dgated, c_.tokens, c_.hidden, width);
  c_.linear_wgrad(ParameterRole::linear_out_proj, dy_whole, gated_, c_.tokens, c_.hidden, width);
  if (c_.shape.cp > 1)
    dgated = c_.exchange_heads(dgated, width, Pass::forward, "d delta gated by heads");

  // Separate layers' gradients are read where they are made; one layer's are put side by side.
  const bool apart = c_.projects_apart() && !spec().packed_projections;
  dprojected_ = b.slot("d delta projected", act, w.rows, w.conv() + w.value + 2 * w.heads);
  dout_ = b.slot("d delta out", act, w.rows, w.value);
  dgate_ = apart ? dprojected_ : b.slot("d delta gate", act, w.rows, w.value);
  const bool eager = eager_gate_ != kNoSlot;
  c_.rowwise(RowwiseKind::gated_norm_backward, w.rows, w.value,
             {dgated, eager ? kNoSlot : out_, eager ? kNoSlot : gate_, normed_out_, eager_gate_,
              c_.weights_backward},
             {dout_, dgate_, c_.gradients})
      .parameter = b.parameter(ParameterRole::linear_norm);

  // W, U, V' and the states made again; gradients of W, V', the states and, twice, of the keys:
  // with those that are returned 13 arrays of a head's width each, as an allocator saw them (437.5
  // MB at 4096 tokens and 32 heads of 128; H200, fla-core 0.6.0).
  const GatedDeltaRule work = rule(Pass::backward);
  const std::int64_t state = work.key_dim * work.value_dim / work.chunk;
  const OwnScratch own = own_scratch(work);
  const SlotId scratch =
      work.own ? b.slot("delta rule scratch", DType::bf16, own.rows, own.cols)
               : b.slot("delta rule scratch", act, w.rows,
                        w.heads * (3 * work.key_dim + 3 * work.value_dim + 2 * state));
  const std::int64_t keys = work.key_heads * work.key_dim;
  dq_ = b.slot("d delta q", act, w.rows, keys);
  dk_ = b.slot("d delta k", act, w.rows, keys);
  dv_ = b.slot("d delta v", act, w.rows, w.value);
  ddecay_ = b.slot("d delta decay", DType::fp32, w.rows, w.heads);
  dstrength_ = b.slot("d delta strength", act, w.rows, w.heads);
  b.compute(work, {q_, k_, v_, decay_, strength_, inverse_, dout_},
            {dq_, dk_, dv_, ddecay_, dstrength_, scratch});
  prepare_backward(apart);

  const SlotId dnormed = project_backward();
  const SlotId dx = b.slot("dx", c_.hidden_dtype(), c_.local_tokens, c_.hidden, Storage::wire);
  c_.norm_backward(ParameterRole::input_norm, x_, dnormed, dy, dx, c_.local_tokens, c_.hidden,
                   eager_norm_);
  return dx;
}

void DeltaNetPart::prepare_backward(bool apart) {
  auto& b = c_.b;
  const DType act = c_.activation_dtype();
  const Widths w = widths(c_.shape.cp);
  const SlotId dqk = b.slot("d delta qk", act, w.rows, 2 * w.key);
  if (c_.recipe.kernels.expands_key_heads) {
    // Gradients of the value heads that share a key head are added up.
    const SlotId sum = b.slot("d delta qk normed", act, w.rows, 2 * w.key);
    c_.rowwise(RowwiseKind::copy, w.rows, w.heads * spec().key_head_dim + w.key, {dq_, dk_}, {sum});
    c_.rowwise(RowwiseKind::l2_norm_backward, w.rows, 2 * w.key, {sum, normed_qk_, qk_scale_},
               {dqk});
  } else {
    c_.rowwise(RowwiseKind::l2_norm_backward, w.rows, 2 * w.key, {dq_, dk_, q_, k_, qk_scale_},
               {dqk});
  }
  const SlotId dconvolved = b.slot("d delta convolved", act, w.rows, w.conv());
  c_.rowwise(RowwiseKind::copy, w.rows, w.conv(), {dqk, dv_}, {dconvolved}).role = Role::beside;
  const SlotId dconv_in = apart ? dprojected_ : b.slot("d delta qkv", act, w.rows, w.conv());
  const SlotId dstrengths =
      apart ? dprojected_ : b.slot("d delta strengths", act, w.rows, 2 * w.heads);
  c_.rowwise(RowwiseKind::causal_conv_backward, w.rows, w.conv(),
             {conv_in_, dconvolved, c_.weights_backward}, {dconv_in, c_.gradients})
      .parameter = b.parameter(ParameterRole::linear_conv);
  c_.rowwise(RowwiseKind::decay_gates_backward, w.rows, w.heads,
             {strengths_in_, ddecay_, dstrength_, c_.weights_backward}, {dstrengths, c_.gradients})
      .parameter = b.parameter(ParameterRole::linear_dt_bias);
  if (apart) return;
  c_.rowwise(RowwiseKind::copy, w.rows, w.conv() + w.value + 2 * w.heads,
             {dconv_in, dgate_, dstrengths}, {dprojected_})
      .role = Role::beside;
}

// As of any column-parallel layer (AttentionPart::project_backward).
SlotId DeltaNetPart::project_backward() {
  auto& b = c_.b;
  const std::int64_t width = projected_width();
  SlotId dprojected = dprojected_;
  if (c_.shape.cp > 1) {
    dprojected = c_.exchange_heads(dprojected, width, Pass::backward, "d delta projected");
  }
  dprojected = c_.linear_input(dprojected, c_.tokens, width, Pass::backward);
  const SlotId whole = c_.gather_sequence_again(normed_, /*wait=*/false);
  const SlotId partial = b.slot("dnormed partial", c_.activation_dtype(), c_.tokens, c_.hidden);
  c_.packed_dgrad(projection(), dprojected, partial, c_.tokens, projections(), c_.hidden);
  if (whole != normed_) {
    b.wait_for(Stream::model_comm);
    b.flush();
  }
  const SlotId dnormed = c_.reduce_input_gradient(partial, "dnormed");
  c_.packed_wgrad(projection(), dprojected, whole, c_.tokens, projections(), c_.hidden);
  if (c_.shape.tp > 1) b.wait_for(Stream::model_comm);
  return dnormed;
}

}  // namespace qplan
