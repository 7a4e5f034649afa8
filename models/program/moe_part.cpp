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

MoePart::ExpertSizes MoePart::expert_sizes() const {
  const auto& s = c_.shape;
  const MoeSpec& moe = *c_.model.moe;
  const std::int64_t fe = moe.moe_intermediate_size / s.etp;
  return {rows().received, width(), fe, up_columns(fe), moe.num_experts / s.ep};
}

// Of the router's products.
DType MoePart::router_dtype() const {
  return c_.activation_dtype() == DType::fp32 ? DType::fp32 : DType::bf16;
}

SlotId MoePart::forward(SlotId x) {
  auto& b = c_.b;
  const MoeSpec& moe = *c_.model.moe;
  const DType act = c_.activation_dtype();
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
  b.compute(
       Gemm{.m = c_.local_tokens, .n = moe.num_experts, .k = c_.hidden, .dtype = router_dtype()},
       {normed_, c_.weights}, {logits})
      .parameter = b.parameter(ParameterRole::router);
  route(logits);
  tell_routing();

  SlotId sum = experts_forward();
  if (moe.shared_expert_intermediate_size > 0) {
    const SlotId shared = shared_forward();
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

// The experts' MLPs over the rows that reach them, and what comes back of it, as the layer adds it.
SlotId MoePart::experts_forward() {
  auto& b = c_.b;
  const auto& s = c_.shape;
  const MoeSpec& moe = *c_.model.moe;
  const DType act = c_.activation_dtype();
  const auto [received, width, fe, up_fe, groups] = expert_sizes();
  b.layer_module(LayerModule::experts);
  const bool numbered = c_.recipe.form.routing;
  const Carried arrived = dispatch({to_latent(), numbered ? probs_ : kNoSlot}, Pass::forward);
  if (numbered) row_probs_ = arrived.numbers;
  mask(arrived.rows, received, width);
  expert_in_ = experts_input(scale_inputs(arrived.rows), received, width);
  if (!numbered) row_probs_ = b.slot("row probs", DType::fp32, received, 2);
  up_ = b.slot("expert up", act, received, up_fe);
  const GroupedGemm up{
      .groups = groups, .rows = received, .n = up_fe, .k = width, .dtype = c_.product_dtype()};
  if (s.fused_experts) act_ = b.slot("expert act", c_.product_dtype(), received, fe);
  const SlotId up_weights = c_.product_weight(c_.expert_weights, up_fe, width, groups);
  b.compute(up, {expert_in_, up_weights, counts_},
            {up_, act_, s.fused_experts ? row_probs_ : kNoSlot})
      .parameter = b.parameter(first_up(ParameterRole::expert_gate_proj));
  const Experts experts{groups, counts_};
  c_.adapt(first_up(ParameterRole::expert_gate_proj), expert_in_, up_, received, up_fe, width,
           experts);
  if (gates_by_parts()) add_indexed_bias(up_, received, up_fe);
  up_ = masked(up_, received, up_fe);
  if (!s.fused_experts) activate_experts(received, fe);
  const SlotId out = b.slot("expert out", act, received, width);
  const GroupedGemm down{
      .groups = groups, .rows = received, .n = width, .k = fe, .dtype = c_.product_dtype()};
  // A bias behind the scaled activation is scaled as well, and its gradient.
  const SlotId scaled = numbered && moe.expert_bias ? row_probs_ : kNoSlot;
  const SlotId down_weights = c_.product_weight(c_.expert_weights, width, fe, groups);
  b.compute(down, {act_, down_weights, counts_, scaled}, {out}).parameter =
      b.parameter(ParameterRole::expert_down_proj);
  c_.adapt(ParameterRole::expert_down_proj, act_, out, received, width, fe, experts);
  if (s.fused_experts) page();
  if (gates_by_parts()) add_indexed_bias(out, received, width);
  const SlotId left = masked(out, received, width);
  const SlotId whole = apart_bias() ? add_bias(left, received) : weighed(left, received);
  const SlotId sum = combine({whole, kNoSlot}, Pass::forward).rows;
  return from_latent(sum);
}

SlotId MoePart::backward(SlotId dy) {
  auto& b = c_.b;
  const DType act = c_.activation_dtype();
  b.layer_module(LayerModule::router);
  SlotId dkept = dy;
  if (c_.drops()) {
    dkept = b.slot("d dropped", act, c_.local_tokens, c_.hidden);
    c_.rowwise(RowwiseKind::dropout_add_backward, c_.local_tokens, c_.hidden, {dy, mask_}, {dkept});
  }
  SharedGradients shared;
  if (c_.model.moe->shared_expert_intermediate_size > 0) shared = shared_backward(dkept);
  const Carried dtokens = experts_backward(dkept);
  const SlotId drouter = router_backward(dtokens.numbers);
  const SlotId sum = b.slot("d moe normed", act, c_.local_tokens, c_.hidden);
  c_.rowwise(RowwiseKind::add, c_.local_tokens, c_.hidden,
             {dtokens.rows, drouter, shared.normed, shared.gate}, {sum});
  const SlotId dx = b.slot("d x2", c_.hidden_dtype(), c_.local_tokens, c_.hidden);
  c_.norm_backward(ParameterRole::post_attention_norm, x_, sum, dy, dx, c_.local_tokens, c_.hidden,
                   eager_norm_);
  return dx;
}

// The gradients of tokens, and of the router's probabilities.
MoePart::Carried MoePart::experts_backward(SlotId dy) {
  auto& b = c_.b;
  const auto& s = c_.shape;
  const MoeSpec& moe = *c_.model.moe;
  const DType act = c_.activation_dtype();
  const auto [received, width, fe, up_fe, groups] = expert_sizes();
  b.layer_module(LayerModule::experts);
  if (s.fused_experts) page();
  // Combine's backward sends gradients the way tokens went, dispatch's the way they came back.
  const SlotId dsum = dispatch({from_latent_backward(dy), kNoSlot}, Pass::backward).rows;
  const SlotId dprobs = b.slot("d probs", DType::fp32, received, 1);
  const SlotId dwhole =
      apart_bias() ? take_bias(dsum, received) : weighed_backward(dsum, dprobs, received);
  const SlotId dout = masked(dwhole, received, width);
  const GroupedGemm down_dgrad{
      .groups = groups, .rows = received, .n = fe, .k = width, .dtype = c_.product_dtype()};
  if (gates_by_parts()) sum_indexed_bias(dout, received, width);
  const SlotId dout_in = experts_input(dout, received, width);
  SlotId dact = kNoSlot, dup = kNoSlot;
  if (s.fused_experts) {
    dup = b.slot("d expert up", c_.product_dtype(), received, up_fe);
  } else {
    dact = b.slot("d expert act", act, received, fe);
  }
  const SlotId down_weights = c_.product_weight(c_.expert_weights_backward, width, fe, groups);
  Op& dgrad =
      s.fused_experts
          ? b.compute(down_dgrad, {dout_in, down_weights, counts_, up_, row_probs_}, {dup, dprobs})
          : b.compute(down_dgrad, {dout_in, down_weights, counts_}, {dact});
  dgrad.parameter = b.parameter(ParameterRole::expert_down_proj);
  dgrad.role = Role::input_gradient;
  const Experts experts{groups, counts_};
  c_.adapt_dgrad(ParameterRole::expert_down_proj, dout_in, dact, received, width, fe, experts);
  const GroupedGemm down_wgrad{.groups = groups,
                               .rows = received,
                               .n = width,
                               .k = fe,
                               .dtype = c_.product_dtype(),
                               .weight_gradient = true,
                               .accumulate_fp32 = c_.products_sum()};
  const bool numbered = c_.recipe.form.routing;
  const bool biased = numbered && moe.expert_bias;
  if (s.frozen) {
    c_.adapt_wgrad(ParameterRole::expert_down_proj, dout_in, act_, received, width, fe, experts);
  } else {
    Op& wgrad = b.compute(down_wgrad, {dout_in, act_, counts_, biased ? row_probs_ : kNoSlot},
                          {c_.expert_gradients});
    wgrad.parameter = b.parameter(ParameterRole::expert_down_proj);
    wgrad.role = Role::weight_gradient;
    c_.accumulate_apart(c_.expert_gradients, groups * width, fe);
  }
  if (!s.fused_experts) {
    const SlotId dup_raw = b.slot("d expert up", act, received, up_fe);
    const bool clamps = clamped_ != kNoSlot;
    const SlotId dclamped = clamps ? b.slot("d clamped expert up", act, received, up_fe) : dup_raw;
    if (silu_ != kNoSlot) {
      c_.rowwise(RowwiseKind::halves_swiglu_backward, received, fe, {up_, silu_, dact}, {dclamped});
    } else if (numbered && !scales_activation()) {
      c_.rowwise(activation(Pass::backward), received, fe, {up_, dact}, {dclamped});
    } else {
      c_.rowwise(activation(Pass::backward), received, fe,
                 {clamps ? clamped_ : up_, dact, row_probs_, counts_, biased ? dout_in : kNoSlot,
                  biased ? c_.expert_weights_backward : kNoSlot},
                 {dclamped, dprobs})
          .parameter = biased ? b.parameter(ParameterRole::expert_down_proj, true) : kNoParameter;
    }
    if (gates_by_parts()) gate_parts_backward(dact, dclamped, received, fe);
    if (clamps) {
      c_.rowwise(RowwiseKind::clamp_backward, received, fe, {up_, dclamped}, {dup_raw});
    }
    if (gates_by_parts()) {
      // Each half's gradient fills a row of zeros; autograd adds the two.
      c_.rowwise(RowwiseKind::add, received, up_fe, {dup_raw, dclamped}, {dup_raw});
      sum_indexed_bias(dup_raw, received, up_fe);
    }
    dup = experts_input(masked(dup_raw, received, up_fe), received, up_fe);
  }
  const SlotId din = b.slot("d expert in", act, received, width);
  const GroupedGemm up_dgrad{
      .groups = groups, .rows = received, .n = width, .k = up_fe, .dtype = c_.product_dtype()};
  const SlotId up_weights = c_.product_weight(c_.expert_weights_backward, up_fe, width, groups);
  Op& input_gradient = b.compute(up_dgrad, {dup, up_weights, counts_}, {din});
  input_gradient.parameter = b.parameter(first_up(ParameterRole::expert_gate_proj));
  input_gradient.role = Role::input_gradient;
  const GroupedGemm up_wgrad{.groups = groups,
                             .rows = received,
                             .n = up_fe,
                             .k = width,
                             .dtype = c_.product_dtype(),
                             .weight_gradient = true,
                             .accumulate_fp32 = c_.products_sum()};
  const ParameterRole first = first_up(ParameterRole::expert_gate_proj);
  c_.adapt_dgrad(first, dup, din, received, up_fe, width, experts);
  if (s.frozen) {
    c_.adapt_wgrad(first, dup, expert_in_, received, up_fe, width, experts);
  } else {
    Op& weight_gradient = b.compute(up_wgrad, {dup, expert_in_, counts_}, {c_.expert_gradients});
    weight_gradient.parameter = b.parameter(first);
    weight_gradient.role = Role::weight_gradient;
    c_.accumulate_apart(c_.expert_gradients, groups * up_fe, width);
  }
  const Carried dinputs = scale_inputs_backward({masked(din, received, width), dprobs});
  Carried dtokens = combine({dinputs.rows, numbered ? dinputs.numbers : kNoSlot}, Pass::backward);
  dtokens.rows = to_latent_backward(dtokens.rows);
  if (!numbered) dtokens.numbers = dinputs.numbers;
  return dtokens;
}

// What the router gives to the gradient of the normed tokens.
SlotId MoePart::router_backward(SlotId dprobs) {
  auto& b = c_.b;
  const MoeSpec& moe = *c_.model.moe;
  const DType act = c_.activation_dtype();

  b.layer_module(LayerModule::router);
  const SlotId dlogits = b.slot("d router logits", DType::fp32, c_.local_tokens, moe.num_experts);
  c_.rowwise(RowwiseKind::router_backward, c_.local_tokens, moe.num_experts,
             {probs_, dprobs, row_map_, balance_}, {dlogits});
  const SlotId drouter = b.slot("d router in", act, c_.local_tokens, c_.hidden);
  Op& router_dgrad = b.compute(
      Gemm{.m = c_.local_tokens, .n = c_.hidden, .k = moe.num_experts, .dtype = router_dtype()},
      {dlogits, c_.weights_backward}, {drouter});
  router_dgrad.parameter = b.parameter(ParameterRole::router);
  router_dgrad.role = Role::input_gradient;
  if (!c_.shape.frozen) {
    Op& router_wgrad = b.compute(
        Gemm{.m = moe.num_experts, .n = c_.hidden, .k = c_.local_tokens, .dtype = router_dtype()},
        {dlogits, normed_}, {c_.gradients});
    router_wgrad.parameter = b.parameter(ParameterRole::router);
    router_wgrad.role = Role::weight_gradient;
  }
  return drouter;
}

}  // namespace qplan
