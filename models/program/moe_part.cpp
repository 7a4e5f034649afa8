// Mixture of experts: norm, router, dispatch, expert MLPs, combine, shared expert, residual
// (docs/reference/physics.md 3.3 and 6; docs/reference/frameworks.md 2.4 rows 9-18).

#include "models/program/moe_part.h"

namespace qplan {

// Fused experts' operands become fp8 all at once, others one by one, maxima included:
// multi_tensor_quantize_impl in Transformer Engine v2.12 has one kernel for delayed scaling alone.
SlotId MoePart::experts_input(SlotId x, std::int64_t rows, std::int64_t cols) {
  if (!c_.recipe.kernels.narrow_experts) return x;
  const bool apart = c_.recipe.kernels.one_product_per_expert && !c_.shape.fused_experts;
  const std::int64_t groups = apart ? c_.model.moe->num_experts / c_.shape.ep : 1;
  return c_.linear_input(x, rows, cols, Pass::forward, groups);
}

// The shared expert's products are any dense layer's (TELinear). What
// the first reads is cast once more for its weight's gradient: the norm's output is kept as it is
// for the router (set_save_original_input in Megatron's shared_experts.py).
SlotId MoePart::shared_input(SlotId x, std::int64_t rows, std::int64_t cols, Pass pass) {
  return c_.recipe.kernels.narrow_experts ? c_.linear_input(x, rows, cols, pass) : x;
}

SlotId MoePart::forward(SlotId x) {
  auto& b = c_.b;
  const auto& s = c_.shape;
  const MoeSpec& moe = *c_.model.moe;
  const DType act = c_.activation_dtype();
  const std::int64_t fe = moe.moe_intermediate_size / s.etp, up_fe = up_columns(fe);
  const std::int64_t width = this->width();
  const std::int64_t groups = moe.num_experts / s.ep;
  const Rows n = rows();
  b.layer_module(LayerModule::router);
  x_ = x;
  if (c_.recipe.kernels.norms_in_linears) b.begin_module(RecomputeModule::layernorm);
  normed_ = b.slot("moe normed", act, c_.local_tokens, c_.hidden);
  eager_norm_ = c_.eager_norm_copy();
  c_.norm_forward(ParameterRole::post_attention_norm, x, normed_, c_.local_tokens, c_.hidden,
                  eager_norm_);
  if (c_.recipe.kernels.norms_in_linears) b.end_module(RecomputeModule::layernorm);

  b.begin_module(RecomputeModule::moe);
  const SlotId logits = b.slot("router logits", DType::fp32, c_.local_tokens, moe.num_experts);
  const DType router_dtype =
      act == DType::fp32 ? DType::fp32 : DType::bf16;  // of the router's products
  b.compute(Gemm{.m = c_.local_tokens, .n = moe.num_experts, .k = c_.hidden, .dtype = router_dtype},
            {normed_, c_.weights}, {logits})
      .parameter = b.parameter(ParameterRole::router);
  route(logits);
  tell_routing();

  b.layer_module(LayerModule::experts);
  const bool numbered = c_.recipe.form.routing;
  const Carried arrived = dispatch({to_latent(), numbered ? probs_ : kNoSlot}, Pass::forward);
  if (numbered) row_probs_ = arrived.numbers;
  mask(arrived.rows, n.received, width);
  expert_in_ = experts_input(scale_inputs(arrived.rows), n.received, width);
  if (!numbered) row_probs_ = b.slot("row probs", DType::fp32, n.received, 2);
  up_ = b.slot("expert up", act, n.received, up_fe);
  const GroupedGemm up{
      .groups = groups, .rows = n.received, .n = up_fe, .k = width, .dtype = c_.product_dtype()};
  if (s.fused_experts) act_ = b.slot("expert act", c_.product_dtype(), n.received, fe);
  const SlotId up_weights = c_.product_weight(c_.expert_weights, up_fe, width, groups);
  b.compute(up, {expert_in_, up_weights, counts_},
            {up_, act_, s.fused_experts ? row_probs_ : kNoSlot})
      .parameter = b.parameter(first_up(ParameterRole::expert_gate_proj));
  const Experts experts{groups, counts_};
  c_.adapt(first_up(ParameterRole::expert_gate_proj), expert_in_, up_, n.received, up_fe, width,
           experts);
  up_ = masked(up_, n.received, up_fe);
  if (!s.fused_experts) activate_experts(n.received, fe);
  const SlotId out = b.slot("expert out", act, n.received, width);
  const GroupedGemm down{
      .groups = groups, .rows = n.received, .n = width, .k = fe, .dtype = c_.product_dtype()};
  // A bias behind the scaled activation is scaled as well, and its gradient.
  const SlotId scaled = numbered && moe.expert_bias ? row_probs_ : kNoSlot;
  const SlotId down_weights = c_.product_weight(c_.expert_weights, width, fe, groups);
  b.compute(down, {act_, down_weights, counts_, scaled}, {out}).parameter =
      b.parameter(ParameterRole::expert_down_proj);
  c_.adapt(ParameterRole::expert_down_proj, act_, out, n.received, width, fe, experts);
  if (s.fused_experts) page();
  const SlotId left = masked(out, n.received, width);
  SlotId sum =
      combine({apart_bias() ? add_bias(left, n.received) : left, kNoSlot}, Pass::forward).rows;
  sum = from_latent(sum);

  if (moe.shared_expert_intermediate_size > 0) {
    b.begin_module(RecomputeModule::shared_experts);
    b.layer_module(LayerModule::router);
    const std::int64_t fs = moe.shared_expert_intermediate_size / s.tp;
    shared_up_ = b.slot("shared up", act, c_.tokens, up_columns(fs));
    c_.gathered_linear(first_up(ParameterRole::shared_gate_proj),
                       shared_input(normed_, c_.local_tokens, c_.hidden, Pass::forward), shared_up_,
                       up_columns(fs), c_.hidden);
    const SlotId activated = b.slot("shared act", act, c_.tokens, fs);
    c_.rowwise(activation(Pass::forward), c_.tokens, fs, {shared_up_}, {activated});
    shared_act_ = shared_input(activated, c_.tokens, fs, Pass::forward);
    SlotId shared = c_.linear_reduced(ParameterRole::shared_down_proj, shared_act_, c_.hidden, fs,
                                      "shared sum");
    if (moe.shared_expert_gate && c_.recipe.form.routing) {
      ungated_ = shared;
      shared_gate_ = b.slot("shared gate", act, c_.local_tokens, 1);
      c_.linear(ParameterRole::shared_expert_gate, normed_, shared_gate_, c_.local_tokens, 1,
                c_.hidden);
      shared = b.slot("gated shared", act, c_.local_tokens, c_.hidden);
      c_.rowwise(RowwiseKind::scale, c_.local_tokens, c_.hidden, {ungated_, shared_gate_}, {shared})
          .role = Role::gate;
    }
    b.end_module(RecomputeModule::shared_experts);
    b.layer_module(LayerModule::experts);
    const SlotId both = b.slot("expert and shared", act, c_.local_tokens, c_.hidden);
    c_.rowwise(RowwiseKind::add, c_.local_tokens, c_.hidden, {sum, shared}, {both});
    sum = both;
  }
  b.end_module(RecomputeModule::moe);
  const SlotId y = b.slot("y", c_.hidden_dtype(), c_.local_tokens, c_.hidden, Storage::wire);
  if (c_.drops()) {
    mask_ = b.slot("moe dropout mask", DType::boolean, c_.local_tokens, c_.hidden);
    c_.rowwise(RowwiseKind::dropout_add, c_.local_tokens, c_.hidden, {sum, x}, {y, mask_});
  } else {
    c_.rowwise(RowwiseKind::add, c_.local_tokens, c_.hidden, {sum, x}, {y});
  }
  return y;
}

SlotId MoePart::backward(SlotId dy) {
  auto& b = c_.b;
  const auto& s = c_.shape;
  const MoeSpec& moe = *c_.model.moe;
  const DType act = c_.activation_dtype();
  const std::int64_t fe = moe.moe_intermediate_size / s.etp, up_fe = up_columns(fe);
  const std::int64_t width = this->width();
  const std::int64_t groups = moe.num_experts / s.ep;
  const Rows n = rows();

  b.layer_module(LayerModule::router);
  SlotId dkept = dy;
  if (c_.drops()) {
    dkept = b.slot("d dropped", act, c_.local_tokens, c_.hidden);
    c_.rowwise(RowwiseKind::dropout_add_backward, c_.local_tokens, c_.hidden, {dy, mask_}, {dkept});
  }
  SlotId dnormed_shared = kNoSlot, dnormed_gate = kNoSlot, dgate = kNoSlot;
  if (moe.shared_expert_intermediate_size > 0) {
    const std::int64_t fs = moe.shared_expert_intermediate_size / s.tp;
    SlotId dshared = dkept;
    if (shared_gate_ != kNoSlot) {
      dshared = b.slot("d ungated", act, c_.local_tokens, c_.hidden);
      dgate = b.slot("d shared gate", act, c_.local_tokens, 1);
      c_.rowwise(RowwiseKind::scale, c_.local_tokens, c_.hidden, {dkept, ungated_, shared_gate_},
                 {dshared, dgate})
          .role = Role::gate_backward;
      c_.linear_wgrad(ParameterRole::shared_expert_gate, dgate, normed_, c_.local_tokens, 1,
                      c_.hidden);
      dnormed_gate = b.slot("d gate in", act, c_.local_tokens, c_.hidden);
      c_.linear_dgrad(ParameterRole::shared_expert_gate, dgate, dnormed_gate, c_.local_tokens, 1,
                      c_.hidden);
    }
    const SlotId dy_whole =
        c_.gather_sequence(shared_input(dshared, c_.local_tokens, c_.hidden, Pass::backward));
    const SlotId dact = b.slot("d shared act", act, c_.tokens, fs);
    c_.linear_dgrad(ParameterRole::shared_down_proj, dy_whole, dact, c_.tokens, c_.hidden, fs);
    c_.linear_wgrad(ParameterRole::shared_down_proj, dy_whole, shared_act_, c_.tokens, c_.hidden,
                    fs);
    const SlotId dup_raw = b.slot("d shared up", act, c_.tokens, up_columns(fs));
    c_.rowwise(activation(Pass::backward), c_.tokens, fs, {shared_up_, dact}, {dup_raw});
    const SlotId dup = shared_input(dup_raw, c_.tokens, up_columns(fs), Pass::backward);
    const SlotId normed_whole =
        c_.gather_sequence_again(shared_input(normed_, c_.local_tokens, c_.hidden, Pass::forward));
    const SlotId partial = b.slot("d shared partial", act, c_.tokens, c_.hidden);
    const ParameterRole role = first_up(ParameterRole::shared_gate_proj);
    c_.linear_dgrad(role, dup, partial, c_.tokens, up_columns(fs), c_.hidden);
    c_.linear_wgrad(role, dup, normed_whole, c_.tokens, up_columns(fs), c_.hidden);
    dnormed_shared = c_.reduce_partial(partial, "d shared normed");
  }

  b.layer_module(LayerModule::experts);
  if (s.fused_experts) page();
  // Combine's backward sends gradients the way tokens went, dispatch's the way they came back.
  const SlotId dsum = dispatch({from_latent_backward(dkept), kNoSlot}, Pass::backward).rows;
  const SlotId dout = masked(apart_bias() ? take_bias(dsum, n.received) : dsum, n.received, width);
  const GroupedGemm down_dgrad{
      .groups = groups, .rows = n.received, .n = fe, .k = width, .dtype = c_.product_dtype()};
  const SlotId dout_in = experts_input(dout, n.received, width);
  const SlotId dprobs = b.slot("d probs", DType::fp32, n.received, 1);
  SlotId dact = kNoSlot, dup = kNoSlot;
  if (s.fused_experts) {
    dup = b.slot("d expert up", c_.product_dtype(), n.received, up_fe);
  } else {
    dact = b.slot("d expert act", act, n.received, fe);
  }
  const SlotId down_weights = c_.product_weight(c_.expert_weights_backward, width, fe, groups);
  Op& dgrad =
      s.fused_experts
          ? b.compute(down_dgrad, {dout_in, down_weights, counts_, up_, row_probs_}, {dup, dprobs})
          : b.compute(down_dgrad, {dout_in, down_weights, counts_}, {dact});
  dgrad.parameter = b.parameter(ParameterRole::expert_down_proj);
  dgrad.role = Role::input_gradient;
  const Experts experts{groups, counts_};
  c_.adapt_dgrad(ParameterRole::expert_down_proj, dout_in, dact, n.received, width, fe, experts);
  const GroupedGemm down_wgrad{.groups = groups,
                               .rows = n.received,
                               .n = width,
                               .k = fe,
                               .dtype = c_.product_dtype(),
                               .weight_gradient = true,
                               .accumulate_fp32 = c_.products_sum()};
  const bool numbered = c_.recipe.form.routing;
  const bool biased = numbered && moe.expert_bias;
  if (s.frozen) {
    c_.adapt_wgrad(ParameterRole::expert_down_proj, dout_in, act_, n.received, width, fe, experts);
  } else {
    Op& wgrad = b.compute(down_wgrad, {dout_in, act_, counts_, biased ? row_probs_ : kNoSlot},
                          {c_.expert_gradients});
    wgrad.parameter = b.parameter(ParameterRole::expert_down_proj);
    wgrad.role = Role::weight_gradient;
    c_.accumulate_apart(c_.expert_gradients, groups * width, fe);
  }
  if (!s.fused_experts) {
    const SlotId dup_raw = b.slot("d expert up", act, n.received, up_fe);
    const bool clamps = clamped_ != kNoSlot;
    const SlotId dclamped =
        clamps ? b.slot("d clamped expert up", act, n.received, up_fe) : dup_raw;
    if (numbered && !scales_activation()) {
      c_.rowwise(activation(Pass::backward), n.received, fe, {up_, dact}, {dclamped});
    } else {
      c_.rowwise(activation(Pass::backward), n.received, fe,
                 {clamps ? clamped_ : up_, dact, row_probs_, counts_, biased ? dout_in : kNoSlot,
                  biased ? c_.expert_weights_backward : kNoSlot},
                 {dclamped, dprobs})
          .parameter = biased ? b.parameter(ParameterRole::expert_down_proj, true) : kNoParameter;
    }
    if (clamps) {
      c_.rowwise(RowwiseKind::clamp_backward, n.received, fe, {up_, dclamped}, {dup_raw});
    }
    dup = experts_input(masked(dup_raw, n.received, up_fe), n.received, up_fe);
  }
  const SlotId din = b.slot("d expert in", act, n.received, width);
  const GroupedGemm up_dgrad{
      .groups = groups, .rows = n.received, .n = width, .k = up_fe, .dtype = c_.product_dtype()};
  const SlotId up_weights = c_.product_weight(c_.expert_weights_backward, up_fe, width, groups);
  Op& input_gradient = b.compute(up_dgrad, {dup, up_weights, counts_}, {din});
  input_gradient.parameter = b.parameter(first_up(ParameterRole::expert_gate_proj));
  input_gradient.role = Role::input_gradient;
  const GroupedGemm up_wgrad{.groups = groups,
                             .rows = n.received,
                             .n = up_fe,
                             .k = width,
                             .dtype = c_.product_dtype(),
                             .weight_gradient = true,
                             .accumulate_fp32 = c_.products_sum()};
  const ParameterRole first = first_up(ParameterRole::expert_gate_proj);
  c_.adapt_dgrad(first, dup, din, n.received, up_fe, width, experts);
  if (s.frozen) {
    c_.adapt_wgrad(first, dup, expert_in_, n.received, up_fe, width, experts);
  } else {
    Op& weight_gradient = b.compute(up_wgrad, {dup, expert_in_, counts_}, {c_.expert_gradients});
    weight_gradient.parameter = b.parameter(first);
    weight_gradient.role = Role::weight_gradient;
    c_.accumulate_apart(c_.expert_gradients, groups * up_fe, width);
  }
  const Carried dinputs = scale_inputs_backward({masked(din, n.received, width), dprobs});
  Carried dtokens = combine({dinputs.rows, numbered ? dinputs.numbers : kNoSlot}, Pass::backward);
  dtokens.rows = to_latent_backward(dtokens.rows);

  b.layer_module(LayerModule::router);
  const SlotId dlogits = b.slot("d router logits", DType::fp32, c_.local_tokens, moe.num_experts);
  c_.rowwise(RowwiseKind::router_backward, c_.local_tokens, moe.num_experts,
             {probs_, numbered ? dtokens.numbers : dinputs.numbers, row_map_, balance_}, {dlogits});
  const SlotId drouter = b.slot("d router in", act, c_.local_tokens, c_.hidden);
  const DType router_dtype = act == DType::fp32 ? DType::fp32 : DType::bf16;
  Op& router_dgrad = b.compute(
      Gemm{.m = c_.local_tokens, .n = c_.hidden, .k = moe.num_experts, .dtype = router_dtype},
      {dlogits, c_.weights_backward}, {drouter});
  router_dgrad.parameter = b.parameter(ParameterRole::router);
  router_dgrad.role = Role::input_gradient;
  if (!s.frozen) {
    Op& router_wgrad = b.compute(
        Gemm{.m = moe.num_experts, .n = c_.hidden, .k = c_.local_tokens, .dtype = router_dtype},
        {dlogits, normed_}, {c_.gradients});
    router_wgrad.parameter = b.parameter(ParameterRole::router);
    router_wgrad.role = Role::weight_gradient;
  }
  const SlotId sum = b.slot("d moe normed", act, c_.local_tokens, c_.hidden);
  c_.rowwise(RowwiseKind::add, c_.local_tokens, c_.hidden,
             {dtokens.rows, drouter, dnormed_shared, dnormed_gate}, {sum});
  const SlotId dx = b.slot("d x2", c_.hidden_dtype(), c_.local_tokens, c_.hidden);
  c_.norm_backward(ParameterRole::post_attention_norm, x_, sum, dy, dx, c_.local_tokens, c_.hidden,
                   eager_norm_);
  return dx;
}

}  // namespace qplan
