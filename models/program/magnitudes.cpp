// DoRA's magnitudes (models/lora.h): norms of a merged weight's rows, what a layer and its adapters
// make scaled by magnitude over norm, and the gradients of both. Norms are taken anew in each
// forward and get no gradient (section 4.3 of arXiv 2402.09353).

#include "models/program/layer_context.h"

namespace qplan {

bool LayerContext::magnifies(ParameterRole role, std::int64_t n) const {
  return shape.dora && recipe.kernels.adapters_in_products && !runs_of(role, n).empty();
}

// Ours makes B A and reads it beside the weight. Megatron-Bridge gathers what of the two matrices
// the ranks share, makes B A and the sum (_get_weight_norm in its peft/dora_layers.py). PEFT makes
// B A by sending an identity through both modules, which autograd keeps beside the result until the
// layer's forward ends, scales it, and adds it to the weight (get_lora_weight, get_weight_norm in
// peft/tuners/lora/dora.py); adapters in fp32 make all of that fp32.
LayerContext::Merged LayerContext::merge(const AdaptedPart& part, std::int64_t n, std::int64_t k,
                                         SlotId norms) {
  const DType act = activation_dtype(), dtype = wide_adapters() ? DType::fp32 : act;
  const std::int64_t rank = shape.lora_rank;
  Merged made;
  if (recipe.kernels.adapters_in_products || shape.parallel_adapters) {
    const bool parallel = shape.parallel_adapters;
    if (parallel && shape.tp > 1) {
      const bool by_rows = kind_of(part) == AdapterKind::row;
      over_tp(CollectiveKind::all_gather, adapters, "adapter whole", by_rows ? n : k, rank);
    }
    made.change = b.slot("B A", act, n, k);
    Op& product =
        b.compute(Gemm{.m = n, .n = k, .k = rank, .dtype = act}, {adapters}, {made.change});
    product.parameter = part.b;
    product.role = Role::merge_adapter;
    SlotId read = weights;
    if (parallel) {
      read = b.slot("merged weight", act, n, k);
      rowwise(RowwiseKind::add, n, k, {weights, made.change}, {read});
    }
    const RowwiseKind kind = parallel ? RowwiseKind::sum_of_squares : RowwiseKind::scale;
    Op& squares = rowwise(kind, n, k, {read, made.change}, {norms});
    squares.parameter = part.weight;
    squares.role = Role::merged_squares;
    return made;
  }
  made.identity = b.slot("identity", dtype, k, k);
  in_format(RowwiseKind::zero_fill, dtype, k, k, {}, {made.identity});
  const SlotId half = b.slot("A as a module makes it", act, k, rank);
  b.compute(Gemm{.m = k, .n = rank, .k = k, .dtype = act}, {made.identity, adapters}, {half});
  SlotId change = b.slot("B A", act, k, n);
  b.compute(Gemm{.m = k, .n = n, .k = rank, .dtype = act}, {half, adapters}, {change});
  made.weight = product_weight(weights, n, k);
  if (dtype != act) {
    const auto widened = [&](SlotId x, std::string_view name) {
      const SlotId y = b.slot(name, dtype, n, k);
      in_format(RowwiseKind::cast, dtype, n, k, {x}, {y});
      return y;
    };
    change = widened(change, "B A, widened");
    made.weight = widened(made.weight, "weight, widened");
  }
  made.change = change;
  const SlotId scaled = b.slot("B A, scaled", dtype, n, k);
  in_format(RowwiseKind::scale, dtype, n, k, {change}, {scaled});
  const SlotId merged = b.slot("merged weight", dtype, n, k);
  in_format(RowwiseKind::add, dtype, n, k, {made.weight, scaled}, {merged});
  in_format(RowwiseKind::sum_of_squares, dtype, n, k, {merged}, {norms});
  return made;
}

void LayerContext::magnify(ParameterRole role, SlotId before, SlotId y, std::int64_t rows,
                           std::int64_t n, std::int64_t k) {
  const SlotId norms = b.slot("squares of merged rows", DType::fp32, n, 1);
  for (const auto& parts : runs_of(role, n)) {
    for (const AdaptedPart& part : parts) merge(part, part.width, k, norms);
  }
  const std::int16_t first = b.parameter(role);
  // Ranks of a row-parallel layer have some columns of each row.
  const Split split = b.parameters()[static_cast<std::size_t>(first)].whole.split;
  if (split == Split::cols && shape.tp > 1) {
    const Bytes bytes(static_cast<double>(n) * size_of(DType::fp32));
    b.exposed(Collective{CollectiveKind::all_reduce, Axis::tp, bytes}, {norms}, {norms});
  }
  Op& op = rowwise(RowwiseKind::scale, rows, n, {before, norms, adapters, weights}, {y});
  op.parameter = first;
  op.role = Role::magnify;
  magnified_.push_back({.first = first, .before = before, .norms = norms});
}

void LayerContext::add_magnified(AdapterRun& run, SlotId y, SlotId outer, std::int64_t rows,
                                 std::int64_t k, const Merged& merged) {
  const DType act = activation_dtype();
  const std::int64_t n = run.parts.front().width;
  const auto make = [&](std::string_view name) { return b.slot(name, act, rows, n); };
  run.base = make("layer's own result");
  run.outer = outer;
  const SlotId of_base = make("own result by magnitudes");
  if (run.mask == kNoSlot) {
    // The layer's result is kept, and the sum is another array.
    rowwise(RowwiseKind::scale, rows, n, {y, run.norms, adapters}, {of_base, run.base});
  } else {
    // What was dropped goes through the layer's own product once more.
    b.compute(Gemm{.m = rows, .n = n, .k = k, .dtype = product_dtype()}, {run.read, merged.weight},
              {run.base});
    rowwise(RowwiseKind::scale, rows, n, {run.base, run.norms, adapters}, {of_base});
  }
  const SlotId of_adapter = make("adapter out by magnitudes"), scaled = make("adapter out scaled");
  rowwise(RowwiseKind::scale, rows, n, {outer, run.norms, adapters}, {of_adapter});
  rowwise(RowwiseKind::scale, rows, n, {of_adapter}, {scaled});
  const SlotId sum = make("what DoRA adds");
  rowwise(RowwiseKind::add, rows, n,
          {of_base, scaled, merged.identity, merged.change, merged.weight}, {sum});
  rowwise(RowwiseKind::add, rows, n, {y, sum}, {y});
}

SlotId LayerContext::magnify_backward(ParameterRole role, SlotId dy, std::int64_t rows,
                                      std::int64_t n) {
  if (!shape.dora || shape.parallel_adapters) return dy;  // a parallel layer's: adapters.cpp
  const DType act = activation_dtype();
  if (recipe.kernels.adapters_in_products) {
    const std::int16_t first = b.parameter(role);
    for (const Magnified& known : magnified_) {
      if (known.first != first) continue;
      const SlotId d_before = b.slot("d before magnitudes", b.at(dy).dtype, rows, n);
      Op& op = rowwise(RowwiseKind::add, rows, n,
                       {dy, known.before, known.norms, adapters_backward, weights_backward},
                       {d_before, adapter_gradients});
      op.parameter = first;
      op.role = Role::magnify_backward;
      return d_before;
    }
    return dy;
  }
  SlotId own = dy;
  for (const auto& parts : runs_of(role, n)) {
    AdapterRun& run = run_of(parts.front());
    const std::int64_t width = parts.front().width;
    const auto make = [&](std::string_view name) { return b.slot(name, act, rows, width); };
    const SlotId scaled = make("d adapter out scaled"), d_outer = make("d adapter out");
    rowwise(RowwiseKind::scale, rows, width, {dy}, {scaled});
    const auto sum_over_tokens = [&](SlotId gradient, SlotId value) {
      const SlotId times = make("d magnitudes of each token");
      rowwise(RowwiseKind::add, rows, width, {gradient, value}, {times});
      rowwise(RowwiseKind::sum_of_squares, rows, width, {times}, {adapter_gradients});
    };
    sum_over_tokens(scaled, run.outer);
    rowwise(RowwiseKind::scale, rows, width, {scaled, run.norms, adapters_backward}, {d_outer});
    sum_over_tokens(dy, run.base);
    const SlotId of_base = make("d own result by magnitudes");
    rowwise(RowwiseKind::scale, rows, width, {dy, run.norms, adapters_backward}, {of_base});
    run.d_outer = {d_outer};
    if (run.mask != kNoSlot) {
      run.d_base = of_base;
      continue;
    }
    const SlotId sum = own == dy ? b.slot("d own result", b.at(dy).dtype, rows, n) : own;
    rowwise(RowwiseKind::add, rows, width, {own, of_base}, {sum});
    own = sum;
  }
  return own;
}

}  // namespace qplan
