// What stands between the two products of an expert, a bias behind the second, and projections of
// tokens to the width of experts.

#include "models/program/moe_part.h"

namespace qplan {

// gpt-oss under Megatron: clamps and the second bias are passes of their own, but where the
// products are fused with what follows them.
bool MoePart::apart_bias() const {
  return c_.model.moe->expert_bias && c_.recipe.kernels.one_product_per_expert &&
         !c_.shape.fused_experts;
}

bool MoePart::scales_inputs() const {
  return c_.model.moe->scales_inputs;
}

// Our executor's activation scales rows by their probabilities, unless experts have read scaled
// rows.
bool MoePart::scales_activation() const {
  return c_.recipe.form.routing && !scales_inputs();
}

// The activation still takes probabilities in Megatron: ones.
SlotId MoePart::scale_inputs(SlotId rows) {
  if (!scales_inputs()) return rows;
  unscaled_ = rows;
  const std::int64_t received = this->rows().received;
  const SlotId scaled = c_.b.slot("scaled expert in", c_.activation_dtype(), received, width());
  const SlotId numbers = c_.recipe.form.routing ? row_probs_ : probs_;
  c_.rowwise(RowwiseKind::scale_rows, received, width(), {rows, numbers}, {scaled});
  return scaled;
}

MoePart::Carried MoePart::scale_inputs_backward(Carried gradients) {
  if (!scales_inputs()) return gradients;
  const std::int64_t received = rows().received;
  const Carried d{c_.b.slot("d unscaled expert in", c_.activation_dtype(), received, width()),
                  c_.b.slot("d input probs", DType::fp32, received, 1)};
  c_.rowwise(RowwiseKind::scale_rows_backward, received, width(),
             {gradients.rows, unscaled_, row_probs_}, {d.rows, d.numbers});
  return d;
}

// transformers 5's experts by torch's grouped product, where they are not spread over ranks: what
// stands between the products is a kernel an operation.
bool MoePart::eager_experts() const {
  return kHuggingFace.has(c_.recipe.kind) && !c_.recipe.kernels.one_product_per_expert &&
         c_.shape.ep == 1;
}

// Releases that clear the rows behind the last expert's even where there are none do so with what
// experts read, where it is, and with both products' results in copies (grouped_mm_experts_forward
// in integrations/moe.py). The gradient of each goes the same way.
//
// Tensor.masked_fill: a clone, and a pass that reads and writes it.
SlotId MoePart::masked(SlotId x, std::int64_t rows, std::int64_t cols) {
  if (!eager_experts() || !c_.recipe.kernels.clears_expert_rows) return x;
  const SlotId copy = c_.b.slot("masked expert rows", c_.b.at(x).dtype, rows, cols);
  c_.rowwise(RowwiseKind::copy, rows, cols, {x}, {copy});
  mask(copy, rows, cols);
  return copy;
}

void MoePart::mask(SlotId x, std::int64_t rows, std::int64_t cols) {
  if (eager_experts() && c_.recipe.kernels.clears_expert_rows) {
    c_.rowwise(RowwiseKind::masked_fill, rows, cols, {x}, {x});
  }
}

SlotId MoePart::weighed(SlotId out, std::int64_t rows) {
  if (!weighs_rows()) return out;
  unweighed_ = out;
  const SlotId weighed = c_.b.slot("weighed expert out", c_.activation_dtype(), rows, width());
  c_.rowwise(RowwiseKind::weigh_rows, rows, width(), {out, row_probs_}, {weighed});
  return weighed;
}

SlotId MoePart::weighed_backward(SlotId dsum, SlotId dprobs, std::int64_t rows) {
  if (!weighs_rows()) return dsum;
  const SlotId dout = c_.b.slot("d unweighed expert out", c_.activation_dtype(), rows, width());
  c_.rowwise(RowwiseKind::weigh_rows_backward, rows, width(), {dsum, unweighed_, row_probs_},
             {dout, dprobs});
  return dout;
}

RowwiseKind MoePart::moves_rows(RowwiseKind forward, Pass pass) const {
  return eager_experts() && pass == Pass::backward ? RowwiseKind::index_put : forward;
}

RowwiseKind MoePart::activation(Pass pass) const {
  if (gated()) return pass == Pass::forward ? RowwiseKind::swiglu : RowwiseKind::swiglu_backward;
  return pass == Pass::forward ? RowwiseKind::gelu : RowwiseKind::gelu_backward;
}

ParameterRole MoePart::first_up(ParameterRole gate) const {
  if (gated()) return gate;
  return gate == ParameterRole::expert_gate_proj ? ParameterRole::expert_up_proj
                                                 : ParameterRole::shared_up_proj;
}

// Whole matrices on every rank, of the rank's tokens (MoELayer.fc1_latent_proj and fc2_latent_proj
// in Megatron-LM d98e8a64, "duplicated").
SlotId MoePart::to_latent() {
  if (c_.model.moe->latent_size == 0) return normed_;
  const SlotId rows = c_.b.slot("latent tokens", c_.activation_dtype(), c_.local_tokens, width());
  latent_in_ = c_.linear_input(normed_, c_.local_tokens, c_.hidden);
  c_.linear(ParameterRole::latent_down_proj, latent_in_, rows, c_.local_tokens, width(), c_.hidden);
  return rows;
}

SlotId MoePart::from_latent(SlotId sum) {
  if (c_.model.moe->latent_size == 0) return sum;
  const SlotId rows = c_.b.slot("experts' sum", c_.activation_dtype(), c_.local_tokens, c_.hidden);
  latent_out_ = c_.linear_input(sum, c_.local_tokens, width());
  c_.linear(ParameterRole::latent_up_proj, latent_out_, rows, c_.local_tokens, c_.hidden, width());
  return rows;
}

SlotId MoePart::from_latent_backward(SlotId dsum) {
  if (c_.model.moe->latent_size == 0) return dsum;
  const SlotId din = c_.linear_input(dsum, c_.local_tokens, c_.hidden, Pass::backward);
  const SlotId rows = c_.b.slot("d latent sum", c_.activation_dtype(), c_.local_tokens, width());
  c_.linear_dgrad(ParameterRole::latent_up_proj, din, rows, c_.local_tokens, c_.hidden, width());
  c_.linear_wgrad(ParameterRole::latent_up_proj, din, latent_out_, c_.local_tokens, c_.hidden,
                  width());
  return rows;
}

SlotId MoePart::to_latent_backward(SlotId drows) {
  if (c_.model.moe->latent_size == 0) return drows;
  const SlotId din = c_.linear_input(drows, c_.local_tokens, width(), Pass::backward);
  const SlotId rows = c_.b.slot("d of latent", c_.activation_dtype(), c_.local_tokens, c_.hidden);
  c_.linear_dgrad(ParameterRole::latent_down_proj, din, rows, c_.local_tokens, width(), c_.hidden);
  c_.linear_wgrad(ParameterRole::latent_down_proj, din, latent_in_, c_.local_tokens, width(),
                  c_.hidden);
  return rows;
}

SlotId MoePart::add_bias(SlotId out, std::int64_t rows) {
  auto& b = c_.b;
  const SlotId wide = b.slot("expert out in fp32", DType::fp32, rows, 2 * c_.hidden);
  const SlotId sum = b.slot("biased expert out", c_.activation_dtype(), rows, c_.hidden);
  b.compute(Rowwise{.kind = RowwiseKind::expert_bias,
                    .rows = rows,
                    .cols = c_.hidden,
                    .dtype = c_.activation_dtype(),
                    .groups = c_.model.moe->num_experts / c_.shape.ep},
            {out, row_probs_}, {wide, sum});
  return sum;
}

SlotId MoePart::take_bias(SlotId dsum, std::int64_t rows) {
  auto& b = c_.b;
  const SlotId wide = b.slot("d expert out in fp32", DType::fp32, rows, 2 * c_.hidden);
  const SlotId dout = b.slot("d unbiased expert out", c_.activation_dtype(), rows, c_.hidden);
  b.compute(Rowwise{.kind = RowwiseKind::expert_bias_backward,
                    .rows = rows,
                    .cols = c_.hidden,
                    .dtype = c_.activation_dtype(),
                    .groups = c_.model.moe->num_experts / c_.shape.ep},
            {dsum, row_probs_}, {wide, dout});
  return dout;
}

// GptOssExperts in transformers 5 (models/gpt_oss/modeling_gpt_oss.py, integrations/moe.py): each
// row looks its bias up, and the gate's operations are kernels each, which autograd keeps arrays
// for. transformers 4's loop over experts is priced as Megatron's.
bool MoePart::gates_by_parts() const {
  return c_.model.moe->expert_bias && kHuggingFace.has(c_.recipe.kind) && gated() &&
         !c_.recipe.kernels.one_product_per_expert;
}

void MoePart::add_indexed_bias(SlotId out, std::int64_t rows, std::int64_t cols) {
  const SlotId biases = c_.b.slot("biases of rows", c_.activation_dtype(), rows, cols);
  c_.rowwise(RowwiseKind::embedding, rows, cols, {c_.expert_weights, counts_}, {biases});
  c_.rowwise(RowwiseKind::add, rows, cols, {out, biases}, {out});
}

// index_put adds the rows of one expert one after the other.
void MoePart::sum_indexed_bias(SlotId dout, std::int64_t rows, std::int64_t cols) {
  if (c_.shape.frozen) return;
  c_.b.compute(Rowwise{.kind = RowwiseKind::index_put,
                       .rows = rows,
                       .cols = cols,
                       .dtype = c_.activation_dtype(),
                       .fused = false,
                       .chain = rows / expert_sizes().groups},
               {dout, counts_}, {c_.expert_gradients});
}

// Both halves are clamped; of gate a, up u: a * alpha, its sigmoid, times a, u + 1, and in the
// activation what that times this is. Kept are both halves, the sigmoid and its product.
void MoePart::gate_parts(std::int64_t rows, std::int64_t width) {
  clamped_ = c_.b.slot("clamped expert up", c_.activation_dtype(), rows, 2 * width);
  c_.rowwise(RowwiseKind::clamp, rows, width, {up_}, {clamped_});
  parts_ = c_.b.slot("parts of the gate", c_.activation_dtype(), rows, 2 * width);
  c_.rowwise(RowwiseKind::scale, rows, width, {clamped_}, {parts_});
  c_.rowwise(RowwiseKind::add, rows, width, {clamped_, parts_}, {parts_});
  c_.rowwise(RowwiseKind::scale, rows, width, {clamped_}, {clamped_});
}

// ... and back: two products of two each, of which one sum is autograd's, and the scale.
void MoePart::gate_parts_backward(SlotId dact, SlotId dclamped, std::int64_t rows,
                                  std::int64_t width) {
  c_.rowwise(RowwiseKind::add, rows, width, {dact, parts_}, {dclamped});
  c_.rowwise(RowwiseKind::add, rows, width, {dclamped, parts_}, {dclamped});
  c_.rowwise(RowwiseKind::scale, rows, width, {dclamped}, {dclamped});
}

// A graph of the whole iteration has room for half as many rows again as come: what backward reads
// of those that came is copied into pages, and out of them before it (Megatron's moe_paged_stash;
// Megatron-Bridge sets it where it captures the whole iteration, v0.5.0). On a stream of its own,
// where it takes bandwidth from what runs beside it: priced as if alone.
void MoePart::page() {
  auto& b = c_.b;
  for (SlotId* kept : {&expert_in_, &up_, &act_}) {
    const DType dtype = b.at(*kept).dtype;
    const std::int64_t rows = b.at(*kept).shape[0], cols = b.at(*kept).shape[1];
    const SlotId copied = b.slot("expert rows in pages", dtype, rows, cols);
    b.compute(Rowwise{.kind = RowwiseKind::copy, .rows = rows, .cols = cols, .dtype = dtype},
              {*kept}, {copied});
    *kept = copied;
  }
}

void MoePart::activate_experts(std::int64_t rows, std::int64_t width) {
  auto& b = c_.b;
  b.begin_module(RecomputeModule::moe_act);
  const SlotId activated = b.slot("expert act", c_.activation_dtype(), rows, width);
  if (apart_bias()) {
    clamped_ = b.slot("clamped expert up", c_.activation_dtype(), rows, 2 * width);
    c_.rowwise(RowwiseKind::clamp, rows, width, {up_}, {clamped_});
    // weighted_bias_quick_geglu_impl (megatron-core 0.15 to 0.19) makes a tensor of its offset on
    // the GPU, torch.tensor(linear_offset, device=...): a blocking copy, so that the launching
    // thread waits for all that it enqueued.
    b.host_sync();
    c_.rowwise(RowwiseKind::swiglu, rows, width, {clamped_, probs_}, {activated, row_probs_});
  } else if (gates_by_parts()) {
    gate_parts(rows, width);
    c_.rowwise(RowwiseKind::swiglu, rows, width, {clamped_, parts_, probs_},
               {activated, row_probs_});
  } else if (scales_activation()) {
    c_.rowwise(activation(Pass::forward), rows, width, {up_, row_probs_, counts_}, {activated});
  } else if (eager_experts() && gated()) {
    silu_ = b.slot("silu of expert up", c_.activation_dtype(), rows, width);
    c_.rowwise(RowwiseKind::halves_swiglu, rows, width, {up_, probs_},
               {activated, silu_, row_probs_});
  } else if (c_.recipe.form.routing) {
    c_.rowwise(activation(Pass::forward), rows, width, {up_}, {activated});
  } else {
    c_.rowwise(activation(Pass::forward), rows, width, {up_, probs_}, {activated, row_probs_});
  }
  act_ = experts_input(activated, rows, width);
  b.end_module(RecomputeModule::moe_act);
}

}  // namespace qplan
