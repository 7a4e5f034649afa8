// LoRA's products beside those of a linear layer (models/lora.h): of its input with A, of that with
// B; backward the other way, and both matrices' gradients. The weight's own gradient is not made,
// so that what only it would read is not kept.

#include "models/error.h"
#include "models/program/layer_context.h"

namespace qplan {

// Our products take all A that stand beside packed weights as one and add B's to the layer's output
// where it is. Elsewhere each adapter is a module of its own, whose output is scaled and added by
// kernels more (peft/tuners/lora/layer.py, `result + lora_B(lora_A(dropout(x))) * scaling`;
// LoRALinear in Megatron-Bridge's peft/lora_layers.py).
std::vector<std::vector<AdaptedPart>> LayerContext::runs_of(ParameterRole role,
                                                            std::int64_t n) const {
  std::vector<std::vector<AdaptedPart>> runs;
  if (!shape.frozen) return runs;
  const std::vector<AdaptedPart> parts = adapted_parts(b.parameters(), role, n);
  if (parts.empty()) return runs;
  if (recipe.kernels.adapters_in_products) return {parts};
  for (const AdaptedPart& part : parts) runs.push_back({part});
  return runs;
}

// Made anew for each product, forward and backward, and gone behind it (MatMul4Bit in bitsandbytes'
// autograd/_functions.py; QuantLinear's dequantised weight).
SlotId LayerContext::product_weight(SlotId packed, std::int64_t n, std::int64_t k,
                                    std::int64_t groups) {
  if (!shape.frozen || !qplan::is_quantized(shape.frozen_weights)) return packed;
  const SlotId weight = b.slot("dequantised weight", activation_dtype(), groups * n, k);
  rowwise(RowwiseKind::dequantize, groups * n, k, {packed}, {weight});
  return weight;
}

LayerContext::AdapterRun& LayerContext::run_of(const AdaptedPart& first) {
  for (AdapterRun& run : adapter_runs_) {
    if (run.parts.front().a == first.a) return run;
  }
  QPLAN_CHECK(false, "backward goes through the adapters that forward went through");
  return adapter_runs_.front();
}

Op& LayerContext::adapter_product(std::int64_t rows, std::int64_t n, std::int64_t k,
                                  const Experts& experts, SlotId x, SlotId weight, SlotId y,
                                  bool adds) {
  const DType dtype = product_dtype();
  if (experts.groups == 0) {
    return b.compute(Gemm{.m = rows, .n = n, .k = k, .dtype = dtype, .adds = adds}, {x, weight},
                     {y});
  }
  return b.compute(
      GroupedGemm{
          .groups = experts.groups, .rows = rows, .n = n, .k = k, .dtype = dtype, .adds = adds},
      {x, weight, experts.counts}, {y});
}

void LayerContext::adapter_gradient(std::int16_t parameter, std::int64_t rows, std::int64_t n,
                                    std::int64_t k, const Experts& experts, SlotId dy, SlotId x) {
  const DType dtype = product_dtype();
  if (experts.groups == 0) {
    return weight_gradient(parameter, {.m = n, .n = k, .k = rows, .dtype = dtype}, dy, x,
                           adapter_gradients);
  }
  Op& op = b.compute(GroupedGemm{.groups = experts.groups,
                                 .rows = rows,
                                 .n = n,
                                 .k = k,
                                 .dtype = dtype,
                                 .weight_gradient = true,
                                 .accumulate_fp32 = products_sum()},
                     {dy, x, experts.counts}, {adapter_gradients});
  op.parameter = parameter;
  op.role = Role::weight_gradient;
  accumulate_apart(adapter_gradients, experts.groups * n, k);
}

void LayerContext::adapt(ParameterRole role, SlotId x, SlotId y, std::int64_t rows, std::int64_t n,
                         std::int64_t k, const Experts& experts) {
  const DType act = activation_dtype();
  const std::int64_t rank = shape.lora_rank;
  for (const auto& parts : runs_of(role, n)) {
    const std::int64_t width = rank * std::ssize(parts);
    SlotId read = x, mask = kNoSlot;
    if (shape.lora_dropout > 0) {
      read = b.slot("adapter in, some dropped", act, rows, k);
      mask = b.slot("adapter dropout mask", DType::boolean, rows, k);
      rowwise(RowwiseKind::dropout_add, rows, k, {x}, {read, mask});
    }
    const SlotId inner = b.slot("adapter inner", act, rows, width);
    adapter_product(rows, width, k, experts, read, adapters, inner).parameter = parts.front().a;
    for (const AdaptedPart& part : parts) {
      const bool apart = !recipe.kernels.adapters_in_products;
      const SlotId outer = apart ? b.slot("adapter out", act, rows, part.width) : y;
      adapter_product(rows, part.width, rank, experts, inner, adapters, outer, !apart).parameter =
          part.b;
      if (!apart) continue;
      const SlotId scaled = b.slot("adapter out scaled", act, rows, part.width);
      rowwise(RowwiseKind::scale, rows, part.width, {outer}, {scaled});
      rowwise(RowwiseKind::add, rows, part.width, {y, scaled}, {y});
    }
    adapter_runs_.push_back(
        {.parts = parts, .read = read, .mask = mask, .inner = inner, .d_outer = {}});
  }
}

void LayerContext::adapt_dgrad(ParameterRole role, SlotId dy, SlotId dx, std::int64_t rows,
                               std::int64_t n, std::int64_t k, const Experts& experts) {
  const DType act = activation_dtype();
  const std::int64_t rank = shape.lora_rank;
  for (const auto& parts : runs_of(role, n)) {
    AdapterRun& run = run_of(parts.front());
    const bool apart = !recipe.kernels.adapters_in_products;
    const std::int64_t width = rank * std::ssize(parts);
    run.d_inner = b.slot("d adapter inner", act, rows, width);
    for (const AdaptedPart& part : parts) {
      SlotId d_outer = dy;
      if (apart) {
        d_outer = b.slot("d adapter out", act, rows, part.width);
        rowwise(RowwiseKind::scale, rows, part.width, {dy}, {d_outer});
      }
      run.d_outer.push_back(d_outer);
      Op& op =
          adapter_product(rows, rank, part.width, experts, d_outer, adapters_backward, run.d_inner);
      op.parameter = part.b;
      op.role = Role::input_gradient;
    }
    const SlotId into = apart ? b.slot("dx of an adapter", act, rows, k) : dx;
    Op& op = adapter_product(rows, k, width, experts, run.d_inner, adapters_backward, into, !apart);
    op.parameter = parts.front().a;
    op.role = Role::input_gradient;
    if (run.mask != kNoSlot) {
      rowwise(RowwiseKind::dropout_add_backward, rows, k, {into, run.mask}, {into});
    }
    if (apart) rowwise(RowwiseKind::add, rows, k, {dx, into}, {dx});
  }
}

void LayerContext::adapt_wgrad(ParameterRole role, SlotId dy, SlotId x, std::int64_t rows,
                               std::int64_t n, std::int64_t k, const Experts& experts) {
  const std::int64_t rank = shape.lora_rank;
  for (const auto& parts : runs_of(role, n)) {
    const AdapterRun& run = run_of(parts.front());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const SlotId d_outer = i < run.d_outer.size() ? run.d_outer[i] : dy;
      adapter_gradient(parts[i].b, rows, parts[i].width, rank, experts, d_outer, run.inner);
    }
    // `x` has come again where the sequence is split; what was dropped of it is kept.
    const SlotId read = run.mask == kNoSlot ? x : run.read;
    adapter_gradient(parts.front().a, rows, rank * std::ssize(parts), k, experts, run.d_inner,
                     read);
  }
}

}  // namespace qplan
