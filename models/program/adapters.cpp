// LoRA's products beside those of a linear layer (models/lora.h): of its input with A, of that with
// B; backward the other way, and both matrices' gradients. The weight's own gradient is not made,
// so that what only it would read is not kept.

#include <algorithm>

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

Op& LayerContext::in_format(RowwiseKind kind, DType dtype, std::int64_t rows, std::int64_t cols,
                            BlockBuilder::Slots reads, BlockBuilder::Slots writes) {
  Op& op = rowwise(kind, rows, cols, reads, writes);
  std::get<Rowwise>(op.work).dtype = dtype;
  return op;
}

// Beside bitsandbytes' layers PEFT leaves it to autocast what an adapter reads
// (requires_conversion in peft/tuners/lora/bnb.py, PEFT 0.21): what has the format of products
// already is read as it is, by every adapter of it.
bool LayerContext::converts_adapter_input(SlotId x) const {
  return wide_adapters() && (!by_bitsandbytes() || b.at(x).dtype == DType::fp32);
}

// What an adapter reads becomes what it lies in, is dropped so, and becomes the format of products
// again (_cast_input_dtype in peft/tuners/tuners_utils.py, and torch's autocast).
SlotId LayerContext::drop(SlotId x, SlotId& mask, std::int64_t rows, std::int64_t k) {
  const bool wide = converts_adapter_input(x);
  const DType act = activation_dtype(), dtype = wide ? DType::fp32 : act;
  SlotId read = x;
  if (wide && b.at(x).dtype != dtype) {
    read = b.slot("adapter in, widened", dtype, rows, k);
    in_format(RowwiseKind::cast, dtype, rows, k, {x}, {read});
  }
  if (shape.lora_dropout > 0) {
    const SlotId kept = b.slot("adapter in, some dropped", dtype, rows, k);
    mask = b.slot("adapter dropout mask", DType::boolean, rows, k);
    in_format(RowwiseKind::dropout_add, dtype, rows, k, {read}, {kept, mask});
    read = kept;
  }
  if (!wide) return read;
  const SlotId narrow = b.slot("adapter in", act, rows, k);
  in_format(RowwiseKind::cast, dtype, rows, k, {read}, {narrow});
  return narrow;
}

// Autocast keeps what it has made of a parameter until backward has read it, too.
SlotId LayerContext::narrow_adapter(std::int16_t parameter, std::int64_t rows, std::int64_t cols) {
  if (!wide_adapters()) return adapters;
  const SlotId narrow = b.slot("adapter as products read it", activation_dtype(), rows, cols);
  in_format(RowwiseKind::cast, DType::fp32, rows, cols, {adapters}, {narrow}).parameter = parameter;
  return narrow;
}

void LayerContext::adapt(ParameterRole role, SlotId x, SlotId y, std::int64_t rows, std::int64_t n,
                         std::int64_t k, const Experts& experts) {
  const DType act = activation_dtype();
  const std::int64_t rank = shape.lora_rank;
  for (const auto& parts : runs_of(role, n)) {
    if (shape.parallel_adapters) {
      adapt_parallel(parts.front(), x, y, rows, n, k);
      continue;
    }
    const bool apart = !recipe.kernels.adapters_in_products;
    const std::int64_t width = rank * std::ssize(parts);
    const std::int64_t each = std::max<std::int64_t>(experts.groups, 1);
    AdapterRun run;
    run.parts = parts;
    run.converts = converts_adapter_input(x);
    run.read = drop(x, run.mask, rows, k);
    Merged merged;
    if (apart && shape.dora) {
      run.norms = b.slot("norms of merged rows", DType::fp32, parts.front().width, 1);
      merged = merge(parts.front(), parts.front().width, k, run.norms);
    }
    run.a = narrow_adapter(parts.front().a, each * width, k);
    run.inner = b.slot("adapter inner", act, rows, width);
    adapter_product(rows, width, k, experts, run.read, run.a, run.inner).parameter =
        parts.front().a;
    for (const AdaptedPart& part : parts) {
      const SlotId outer = apart ? b.slot("adapter out", act, rows, part.width) : y;
      run.b = narrow_adapter(part.b, each * part.width, rank);
      adapter_product(rows, part.width, rank, experts, run.inner, run.b, outer, !apart).parameter =
          part.b;
      if (!apart) continue;
      if (shape.dora) {
        add_magnified(run, y, outer, rows, k, merged);
        continue;
      }
      const SlotId scaled = b.slot("adapter out scaled", act, rows, part.width);
      rowwise(RowwiseKind::scale, rows, part.width, {outer}, {scaled});
      rowwise(RowwiseKind::add, rows, part.width, {y, scaled}, {y});
    }
    adapter_runs_.push_back(std::move(run));
  }
}

void LayerContext::adapt_dgrad(ParameterRole role, SlotId dy, SlotId dx, std::int64_t rows,
                               std::int64_t n, std::int64_t k, const Experts& experts) {
  const DType act = activation_dtype();
  const std::int64_t rank = shape.lora_rank;
  for (const auto& parts : runs_of(role, n)) {
    if (shape.parallel_adapters) {
      adapt_parallel_dgrad(parts.front(), dy, dx, rows, n, k);
      continue;
    }
    AdapterRun& run = run_of(parts.front());
    const bool apart = !recipe.kernels.adapters_in_products;
    const std::int64_t width = rank * std::ssize(parts);
    const bool wide = wide_adapters();
    run.d_inner = b.slot("d adapter inner", act, rows, width);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const AdaptedPart& part = parts[i];
      if (i == run.d_outer.size()) {  // DoRA has made it already
        SlotId d_outer = dy;
        if (apart) {
          d_outer = b.slot("d adapter out", act, rows, part.width);
          rowwise(RowwiseKind::scale, rows, part.width, {dy}, {d_outer});
        }
        run.d_outer.push_back(d_outer);
      }
      Op& op = adapter_product(rows, rank, part.width, experts, run.d_outer[i],
                               wide ? run.b : adapters_backward, run.d_inner);
      op.parameter = part.b;
      op.role = Role::input_gradient;
    }
    SlotId into = apart ? b.slot("dx of an adapter", act, rows, k) : dx;
    Op& op = adapter_product(rows, k, width, experts, run.d_inner, wide ? run.a : adapters_backward,
                             into, !apart);
    op.parameter = parts.front().a;
    op.role = Role::input_gradient;
    if (run.d_base != kNoSlot) {  // DoRA with dropout: through the layer's product once more
      const SlotId through = b.slot("dx of what was dropped", act, rows, k);
      const std::int64_t n_part = parts.front().width;
      const SlotId weight = product_weight(weights_backward, n_part, k);
      b.compute(Gemm{.m = rows, .n = k, .k = n_part, .dtype = product_dtype()},
                {run.d_base, weight}, {through});
      rowwise(RowwiseKind::add, rows, k, {into, through}, {into});
    }
    const DType dtype = run.converts ? DType::fp32 : act;
    if (run.converts) {
      const SlotId widened = b.slot("dx of an adapter, widened", dtype, rows, k);
      in_format(RowwiseKind::cast, dtype, rows, k, {into}, {widened});
      into = widened;
    }
    if (run.mask != kNoSlot) {
      in_format(RowwiseKind::dropout_add_backward, dtype, rows, k, {into, run.mask}, {into});
    }
    if (run.converts && b.at(dx).dtype != dtype) {
      const SlotId narrow = b.slot("dx of an adapter, narrowed", act, rows, k);
      in_format(RowwiseKind::cast, dtype, rows, k, {into}, {narrow});
      into = narrow;
    }
    if (apart) rowwise(RowwiseKind::add, rows, k, {dx, into}, {dx});
  }
}

void LayerContext::adapt_wgrad(ParameterRole role, SlotId dy, SlotId x, std::int64_t rows,
                               std::int64_t n, std::int64_t k, const Experts& experts) {
  const std::int64_t rank = shape.lora_rank;
  for (const auto& parts : runs_of(role, n)) {
    if (shape.parallel_adapters) {
      adapt_parallel_wgrad(parts.front(), rows, k, experts.groups > 0);
      continue;
    }
    const AdapterRun& run = run_of(parts.front());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const SlotId d_outer = i < run.d_outer.size() ? run.d_outer[i] : dy;
      adapter_gradient(parts[i].b, rows, parts[i].width, rank, experts, d_outer, run.inner);
    }
    // `x` has come again where the sequence is split; what was dropped of it is kept.
    const SlotId read = run.mask == kNoSlot && !run.converts ? x : run.read;
    adapter_gradient(parts.front().a, rows, rank * std::ssize(parts), k, experts, run.d_inner,
                     read);
  }
}

// ---- parallel adapters (Megatron-Bridge) ----
//
// Beside a column-parallel layer A makes a rank's share of the inner columns, which are gathered,
// and B a rank's share of the output. Beside a row-parallel one A's partial sums are summed, B
// makes a rank's share of the output, and that is gathered: all of it, over all tokens, of which
// each rank then takes its part of the sequence. Both layers' inputs' gradients come the other way.
// All collectives are waited for where they stand.

LayerContext::AdapterKind LayerContext::kind_of(const AdaptedPart& part) const {
  const std::vector<PackedParameter>& table = b.parameters();
  const Parameter& a = table[static_cast<std::size_t>(part.a)].whole;
  if (a.split == Split::cols) return AdapterKind::row;
  const auto weight = std::find_if(table.begin(), table.end(), [&](const PackedParameter& p) {
    return p.whole.role == a.role && p.whole.adapter == Adapter::none && !p.whole.bias;
  });
  return weight->whole.split == Split::none ? AdapterKind::whole : AdapterKind::column;
}

SlotId LayerContext::over_tp(CollectiveKind kind, SlotId x, std::string_view name,
                             std::int64_t rows, std::int64_t cols) {
  const DType act = activation_dtype();
  const SlotId result = kind == CollectiveKind::all_reduce ? x : b.slot(name, act, rows, cols);
  const Bytes bytes(static_cast<double>(rows * cols) * size_of(act));
  b.exposed(Collective{kind, Axis::tp, bytes}, {x}, {result});
  return result;
}

// A rank's share of the columns of all tokens becomes all columns of its share of the tokens, or
// back: as many numbers either way.
SlotId LayerContext::exchanged(SlotId x, std::string_view name, std::int64_t numbers,
                               std::int64_t rows, std::int64_t cols) {
  const SlotId result = b.slot(name, activation_dtype(), rows, cols);
  const Bytes bytes(static_cast<double>(numbers) * size_of(activation_dtype()));
  b.exposed(Collective{CollectiveKind::all_to_all, Axis::tp, bytes}, {x}, {result});
  return result;
}

void LayerContext::adapt_parallel(const AdaptedPart& part, SlotId x, SlotId y, std::int64_t rows,
                                  std::int64_t n, std::int64_t k) {
  const DType act = activation_dtype();
  const std::int64_t rank = shape.lora_rank;
  const AdapterKind kind = kind_of(part);
  const bool alone =
      shape.tp == 1 || is_expert(b.parameters()[static_cast<std::size_t>(part.a)].whole.role);
  const std::int64_t inner_share = b.parameters()[static_cast<std::size_t>(part.a)].rows;
  SlotId mask = kNoSlot;
  const SlotId read = drop(x, mask, rows, k);
  const std::int64_t outputs = alone || kind == AdapterKind::column ? part.width : n;
  SlotId norms = kNoSlot, before = kNoSlot;
  SlotId inner = b.slot("adapter inner", act, rows, inner_share);
  adapter_product(rows, inner_share, k, {}, read, adapters, inner).parameter = part.a;
  if (!alone) {
    inner = kind == AdapterKind::row
                ? over_tp(CollectiveKind::all_reduce, inner, "", rows, rank)
                : over_tp(CollectiveKind::all_gather, inner, "adapter inner whole", rows, rank);
  }
  SlotId outer = b.slot("adapter out", act, rows, part.width);
  adapter_product(rows, part.width, rank, {}, inner, adapters, outer).parameter = part.b;
  std::int64_t columns = part.width, mine = rows;
  const bool split = kind == AdapterKind::row && shape.sequence_parallel;
  if (!alone && kind != AdapterKind::column) {
    columns = n;
    if (split) mine = local_tokens;
    outer = split && shape.lora_a2a
                ? exchanged(outer, "adapter out of own tokens", rows * part.width, mine, columns)
                : over_tp(CollectiveKind::all_gather, outer, "adapter out whole", rows, n);
  }
  const SlotId scaled = b.slot("adapter out scaled", act, mine, columns);
  rowwise(RowwiseKind::scale, mine, columns, {outer}, {scaled});
  if (shape.dora) {  // DoRALinear.forward in Megatron-Bridge's peft/dora_layers.py
    norms = b.slot("norms of merged rows", DType::fp32, outputs, 1);
    merge(part, outputs, k, norms);
    before = b.slot("before magnitudes", act, mine, columns);
    rowwise(RowwiseKind::add, mine, columns, {y, scaled}, {before});
    rowwise(RowwiseKind::scale, mine, columns, {before, norms, adapters}, {y});
  } else {
    rowwise(RowwiseKind::add, mine, columns, {y, scaled}, {y});
  }
  AdapterRun run;
  run.parts = {part};
  run.read = read;
  run.mask = mask;
  run.inner = inner;
  run.base = before;
  run.norms = norms;
  adapter_runs_.push_back(std::move(run));
}

void LayerContext::adapt_parallel_dgrad(const AdaptedPart& part, SlotId dy, SlotId dx,
                                        std::int64_t rows, std::int64_t n, std::int64_t k) {
  const DType act = activation_dtype();
  const std::int64_t rank = shape.lora_rank;
  const AdapterKind kind = kind_of(part);
  const bool alone =
      shape.tp == 1 || is_expert(b.parameters()[static_cast<std::size_t>(part.a)].whole.role);
  const bool gathered = !alone && kind != AdapterKind::column;
  const std::int64_t inner_share = b.parameters()[static_cast<std::size_t>(part.a)].rows;
  AdapterRun& run = run_of(part);
  const bool scattered = gathered && kind == AdapterKind::row && shape.sequence_parallel;
  const std::int64_t mine = scattered ? local_tokens : rows;
  const std::int64_t columns = gathered ? n : part.width;
  if (shape.dora) {
    const SlotId times = b.slot("d magnitudes of each token", act, mine, columns);
    rowwise(RowwiseKind::add, mine, columns, {dy, run.base}, {times});
    rowwise(RowwiseKind::sum_of_squares, mine, columns, {times}, {adapter_gradients});
    const SlotId d_before = b.slot("d before magnitudes", act, mine, columns);
    rowwise(RowwiseKind::scale, mine, columns, {dy, run.norms, adapters_backward}, {d_before});
    dy = d_before;
  }
  SlotId d_outer = b.slot("d adapter out", act, mine, columns);
  rowwise(RowwiseKind::scale, mine, columns, {dy}, {d_outer});
  const bool exchanges = scattered && shape.lora_a2a;
  if (exchanges) {
    d_outer = exchanged(d_outer, "d adapter out share", rows * part.width, rows, part.width);
  } else if (scattered) {
    d_outer = over_tp(CollectiveKind::all_gather, d_outer, "d adapter out whole", rows, n);
  }
  if (gathered && !exchanges) {
    const SlotId share = b.slot("d adapter out share", act, rows, part.width);
    rowwise(RowwiseKind::copy, rows, part.width, {d_outer}, {share});
    d_outer = share;
  }
  run.d_outer = {d_outer};
  SlotId d_inner = b.slot("d adapter inner", act, rows, rank);
  Op& into_inner = adapter_product(rows, rank, part.width, {}, d_outer, adapters_backward, d_inner);
  into_inner.parameter = part.b;
  into_inner.role = Role::input_gradient;
  if (!alone) over_tp(CollectiveKind::all_reduce, d_inner, "", rows, rank);
  if (inner_share < rank) {
    const SlotId share = b.slot("d adapter inner share", act, rows, inner_share);
    rowwise(RowwiseKind::copy, rows, inner_share, {d_inner}, {share});
    d_inner = share;
  }
  run.d_inner = d_inner;
  const SlotId into = b.slot("dx of an adapter", act, rows, k);
  Op& op = adapter_product(rows, k, inner_share, {}, d_inner, adapters_backward, into);
  op.parameter = part.a;
  op.role = Role::input_gradient;
  // With sequence parallelism it is summed with the layer's own (disable_grad_reduce).
  const bool sums = !alone && (kind == AdapterKind::whole ||
                               (kind == AdapterKind::column && !shape.sequence_parallel));
  if (sums) over_tp(CollectiveKind::all_reduce, into, "", rows, k);
  if (run.mask != kNoSlot) {
    rowwise(RowwiseKind::dropout_add_backward, rows, k, {into, run.mask}, {into});
  }
  rowwise(RowwiseKind::add, rows, k, {dx, into}, {dx});
}

void LayerContext::adapt_parallel_wgrad(const AdaptedPart& part, std::int64_t rows, std::int64_t k,
                                        bool of_experts) {
  const std::int64_t rank = shape.lora_rank;
  const AdapterRun& run = run_of(part);
  const std::int64_t inner_share = b.parameters()[static_cast<std::size_t>(part.a)].rows;
  adapter_gradient(part.b, rows, part.width, rank, {}, run.d_outer.front(), run.inner);
  adapter_gradient(part.a, rows, inner_share, k, {}, run.d_inner, run.read);
  if (!of_experts || shape.ep == 1) return;
  // Hooks sum both over the ranks of ep, on which the other experts are.
  const Bytes bytes(static_cast<double>(rank * (part.width + k)) * size_of(activation_dtype()));
  b.exposed(
      Collective{.kind = CollectiveKind::all_reduce, .axis = Axis::ep, .bytes = bytes, .calls = 2},
      {adapter_gradients}, {adapter_gradients});
}

}  // namespace qplan
