// What stands between the two products of an expert, and a bias behind the second.

#include "models/program/layer_context.h"

namespace qplan {

// gpt-oss under Megatron: clamps and the second bias are passes of their own, but where the
// products are fused with what follows them.
bool MoePart::apart_bias() const {
  return c_.model.moe->expert_bias && c_.recipe.one_product_per_expert && !c_.shape.fused_experts;
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
  } else if (c_.recipe.executable) {
    c_.rowwise(RowwiseKind::swiglu, rows, width, {up_, row_probs_, counts_}, {activated});
  } else {
    c_.rowwise(RowwiseKind::swiglu, rows, width, {up_, probs_}, {activated, row_probs_});
  }
  act_ = experts_input(activated, rows, width);
  b.end_module(RecomputeModule::moe_act);
}

}  // namespace qplan
