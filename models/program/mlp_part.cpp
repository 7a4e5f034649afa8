// The MLP of a dense layer: norm, up (and gate) projection, activation, down projection, residual.

#include "models/program/mlp_part.h"

namespace qplan {
namespace {

bool gated(const LayerContext& c) {
  return c.model.mlp == MlpKind::swiglu;
}

// Columns of the up projection on one rank, gate and up when gated.
LayerContext::Widths up_widths(const LayerContext& c, std::int64_t f) {
  return gated(c) ? LayerContext::Widths{f, f} : LayerContext::Widths{f};
}

// ... together.
std::int64_t up_width(const LayerContext& c, std::int64_t f) {
  return gated(c) ? 2 * f : f;
}

ParameterRole first_up(const LayerContext& c) {
  return gated(c) ? ParameterRole::gate_proj : ParameterRole::up_proj;
}

}  // namespace

SlotId MlpPart::forward(SlotId x, SlotId shared) {
  auto& b = c_.b;
  b.layer_module(LayerModule::mlp);
  x_ = x;
  const RecomputeModule norm =
      c_.recipe.kernels.norms_in_linears ? RecomputeModule::mlp : RecomputeModule::layernorm;
  beside_ = shared != kNoSlot;
  if (beside_) {
    normed_ = shared;
  } else {
    b.begin_module(norm);
    SlotId normed = x;
    if (norms_before(c_)) {
      normed = b.slot("mlp normed", c_.hidden_dtype(), c_.local_tokens, c_.hidden);
      eager_norm_ = c_.eager_norm_copy();
      c_.norm_forward(ParameterRole::post_attention_norm, x, normed, c_.local_tokens, c_.hidden,
                      eager_norm_);
    }
    normed_ = c_.linear_input(normed, c_.local_tokens, c_.hidden);
    b.end_module(norm);
  }

  const SlotId sum = c_.shape.fpdt_chunk > 0 ? fpdt_.mlp_forward(normed_) : multiply();
  const SlotId added = behind_.forward(sum);

  const SlotId y = b.slot("y", c_.hidden_dtype(), c_.local_tokens, c_.hidden, Storage::wire);
  if (c_.drops()) {
    mask_ = b.slot("mlp dropout mask", DType::boolean, c_.local_tokens, c_.hidden);
    c_.rowwise(RowwiseKind::dropout_add, c_.local_tokens, c_.hidden, {added, x}, {y, mask_});
  } else {
    c_.rowwise(RowwiseKind::add, c_.local_tokens, c_.hidden, {added, x}, {y});
  }
  return y;
}

SlotId MlpPart::multiply() {
  auto& b = c_.b;
  const DType act = c_.activation_dtype(), wide = c_.hidden_dtype();
  const std::int64_t f = c_.model.intermediate_size / c_.shape.tp;
  b.begin_module(RecomputeModule::mlp);
  if (gated(c_) && (c_.shape.recomputes_operators || c_.projects_apart())) {
    gate_ = b.slot("mlp gate", wide, c_.tokens, f);
    up_ = b.slot("mlp up", wide, c_.tokens, f);
    const SlotId whole = c_.gathered_linear(first_up(c_), normed_, gate_, f, c_.hidden);
    c_.linear(ParameterRole::up_proj, whole, up_, c_.tokens, f, c_.hidden);
  } else {
    up_ = b.slot("mlp up", act, c_.tokens, up_width(c_, f));
    c_.gathered_linear(first_up(c_), normed_, up_, up_width(c_, f), c_.hidden);
  }
  const SlotId activated = b.slot("mlp act", wide, c_.tokens, f);
  if (gated(c_) && !c_.fuses_swiglu()) eager_silu_ = c_.eager_copy("silu", wide, c_.tokens, f);
  // torch's autocast squares in fp32 (ReLUSquaredActivation; pow is among the fp32 operators of
  // autocast_mode.h): it keeps its input so, and relu its result.
  if (c_.model.mlp == MlpKind::relu2 && wide != DType::fp32) {
    eager_silu_ = c_.eager_copy("relu in fp32", DType::fp32, c_.tokens, f);
  }
  c_.rowwise(gated(c_) ? RowwiseKind::swiglu : RowwiseKind::gelu, c_.tokens, f, {up_, gate_},
             {activated, eager_silu_});
  act_ = c_.linear_input(activated, c_.tokens, f);
  const SlotId sum = c_.linear_reduced(ParameterRole::down_proj, act_, c_.hidden, f, "mlp sum");
  b.end_module(RecomputeModule::mlp);
  return sum;
}

SlotId MlpPart::backward(SlotId dy) {
  auto& b = c_.b;
  b.layer_module(LayerModule::mlp);
  const DType act = c_.activation_dtype();
  SlotId dout = dy;
  if (c_.drops()) {
    dout = b.slot("d dropped", act, c_.local_tokens, c_.hidden);
    c_.rowwise(RowwiseKind::dropout_add_backward, c_.local_tokens, c_.hidden, {dy, mask_}, {dout});
  }
  dout = behind_.backward(dout);
  const SlotId dnormed =
      c_.shape.fpdt_chunk > 0 ? fpdt_.mlp_backward(dout, normed_) : multiply_backward(dout);
  if (beside_) {
    dnormed_ = dnormed;
    return dy;
  }
  const SlotId dx = b.slot("d x2", c_.hidden_dtype(), c_.local_tokens, c_.hidden);
  if (!norms_before(c_)) {
    c_.rowwise(RowwiseKind::add, c_.local_tokens, c_.hidden, {dnormed, dy}, {dx});
    return dx;
  }
  c_.norm_backward(ParameterRole::post_attention_norm, x_, dnormed, dy, dx, c_.local_tokens,
                   c_.hidden, eager_norm_);
  return dx;
}

SlotId MlpPart::multiply_backward(SlotId dout) {
  auto& b = c_.b;
  const DType act = c_.activation_dtype();
  const std::int64_t f = c_.model.intermediate_size / c_.shape.tp;
  const std::int64_t wide = up_width(c_, f);
  const SlotId dy_in = c_.linear_input(dout, c_.local_tokens, c_.hidden, Pass::backward);
  const SlotId dy_whole = c_.gather_sequence(dy_in);
  const SlotId dact = b.slot("d mlp act", c_.hidden_dtype(), c_.tokens, f);
  c_.linear_dgrad(ParameterRole::down_proj, dy_whole, dact, c_.tokens, c_.hidden, f);
  c_.linear_wgrad(ParameterRole::down_proj, dy_whole, act_, c_.tokens, c_.hidden, f);
  const SlotId dup_raw = b.slot("d mlp up", c_.hidden_dtype(), c_.tokens, wide);
  c_.rowwise(gated(c_) ? RowwiseKind::swiglu_backward : RowwiseKind::gelu_backward, c_.tokens, f,
             {up_, gate_, dact, eager_silu_}, {dup_raw});
  const SlotId dup = c_.linear_input(dup_raw, c_.tokens, wide, Pass::backward);

  const SlotId normed_whole = c_.gather_sequence_again(normed_, /*wait=*/false);
  const SlotId partial = b.slot("d mlp normed partial", act, c_.tokens, c_.hidden);
  c_.packed_dgrad(first_up(c_), dup, partial, c_.tokens, up_widths(c_, f), c_.hidden);
  if (normed_whole != normed_) {
    b.wait_for(Stream::model_comm);
    b.flush();
  }
  const SlotId dnormed = c_.reduce_input_gradient(partial, "d mlp normed");
  c_.packed_wgrad(first_up(c_), dup, normed_whole, c_.tokens, up_widths(c_, f), c_.hidden);
  if (c_.shape.tp > 1) b.wait_for(Stream::model_comm);
  return dnormed;
}

}  // namespace qplan
