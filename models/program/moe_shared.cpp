// The expert that every token takes beside the routed ones, and its gate (Qwen2-MoE).

#include "models/program/moe_part.h"

namespace qplan {

// The shared expert's products are any dense layer's (TELinear). What
// the first reads is cast once more for its weight's gradient: the norm's output is kept as it is
// for the router (set_save_original_input in Megatron's shared_experts.py).
SlotId MoePart::shared_input(SlotId x, std::int64_t rows, std::int64_t cols, Pass pass) {
  return c_.recipe.kernels.narrow_experts ? c_.linear_input(x, rows, cols, pass) : x;
}

// What the shared expert adds to the routed ones', gated where the model gates it.
SlotId MoePart::shared_forward() {
  auto& b = c_.b;
  const MoeSpec& moe = *c_.model.moe;
  const DType act = c_.activation_dtype();
  b.begin_module(RecomputeModule::shared_experts);
  b.layer_module(LayerModule::router);
  const std::int64_t fs = moe.shared_expert_intermediate_size / c_.shape.tp;
  shared_up_ = b.slot("shared up", act, c_.tokens, up_columns(fs));
  c_.gathered_linear(first_up(ParameterRole::shared_gate_proj),
                     shared_input(normed_, c_.local_tokens, c_.hidden, Pass::forward), shared_up_,
                     up_columns(fs), c_.hidden);
  const SlotId activated = b.slot("shared act", act, c_.tokens, fs);
  if (gated() && !c_.fuses_swiglu()) {
    shared_silu_ = c_.eager_copy("silu of shared up", act, c_.tokens, fs);
  }
  c_.rowwise(activation(Pass::forward), c_.tokens, fs, {shared_up_}, {activated, shared_silu_});
  shared_act_ = shared_input(activated, c_.tokens, fs, Pass::forward);
  SlotId shared =
      c_.linear_reduced(ParameterRole::shared_down_proj, shared_act_, c_.hidden, fs, "shared sum");
  if (moe.shared_expert_gate && (c_.recipe.form.routing || c_.recipe.keeps.eager_copies)) {
    ungated_ = shared;
    shared_gate_ = b.slot("shared gate", act, c_.local_tokens, 1);
    c_.linear(ParameterRole::shared_expert_gate, normed_, shared_gate_, c_.local_tokens, 1,
              c_.hidden);
    shared = b.slot("gated shared", act, c_.local_tokens, c_.hidden);
    c_.rowwise(RowwiseKind::scale, c_.local_tokens, c_.hidden, {ungated_, shared_gate_}, {shared})
        .role = Role::gate;
  }
  b.end_module(RecomputeModule::shared_experts);
  return shared;
}

// What the shared expert and its gate give to the gradient of the normed tokens.
MoePart::SharedGradients MoePart::shared_backward(SlotId dy) {
  auto& b = c_.b;
  const MoeSpec& moe = *c_.model.moe;
  const DType act = c_.activation_dtype();
  SlotId dnormed_gate = kNoSlot;
  const std::int64_t fs = moe.shared_expert_intermediate_size / c_.shape.tp;
  SlotId dshared = dy;
  if (shared_gate_ != kNoSlot) {
    dshared = b.slot("d ungated", act, c_.local_tokens, c_.hidden);
    const SlotId dgate = b.slot("d shared gate", act, c_.local_tokens, 1);
    c_.rowwise(RowwiseKind::scale, c_.local_tokens, c_.hidden, {dy, ungated_, shared_gate_},
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
  c_.linear_wgrad(ParameterRole::shared_down_proj, dy_whole, shared_act_, c_.tokens, c_.hidden, fs);
  const SlotId dup_raw = b.slot("d shared up", act, c_.tokens, up_columns(fs));
  c_.rowwise(activation(Pass::backward), c_.tokens, fs, {shared_up_, dact, shared_silu_},
             {dup_raw});
  const SlotId dup = shared_input(dup_raw, c_.tokens, up_columns(fs), Pass::backward);
  const SlotId normed_whole =
      c_.gather_sequence_again(shared_input(normed_, c_.local_tokens, c_.hidden, Pass::forward));
  const SlotId partial = b.slot("d shared partial", act, c_.tokens, c_.hidden);
  const ParameterRole role = first_up(ParameterRole::shared_gate_proj);
  c_.linear_dgrad(role, dup, partial, c_.tokens, up_columns(fs), c_.hidden);
  c_.linear_wgrad(role, dup, normed_whole, c_.tokens, up_columns(fs), c_.hidden);
  return {c_.reduce_partial(partial, "d shared normed"), dnormed_gate};
}

}  // namespace qplan
