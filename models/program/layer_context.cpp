#include "models/program/layer_context.h"

#include <algorithm>
#include <numeric>

#include "models/program/fpdt_part.h"

namespace qplan {

namespace {

bool copies_parts(const LayerContext& c) {
  return c.recipe.kernels.copies_sequence_parts && c.shape.micro_batch_size > 1 && !c.overlaps_tp();
}

SlotId copied(LayerContext& c, SlotId x, std::string_view name) {
  const DType dtype = c.b.at(x).dtype;
  const std::int64_t rows = c.b.at(x).shape[0], cols = c.b.at(x).shape[1];
  const SlotId y = c.b.slot(name, dtype, rows, cols);
  c.b.compute(Rowwise{.kind = RowwiseKind::copy, .rows = rows, .cols = cols, .dtype = dtype}, {x},
              {y});
  return y;
}

}  // namespace

LayerContext::LayerContext(const ModelSpec& m, const Recipe& r, const BlockShape& s,
                           BlockBuilder& builder)
    : model(m), recipe(r), shape(s), b(builder) {
  tokens = s.micro_batch_size * s.seq_len / s.cp;
  local_tokens = s.sequence_parallel ? tokens / s.tp : tokens;
  hidden = m.hidden_size;
  b.parameters(packed_parameters(m, s));
}

DType activation_dtype_of(const BlockShape& shape) {
  switch (shape.precision) {
    case Precision::fp16:
      return DType::fp16;
    case Precision::fp32:
      return DType::fp32;
    case Precision::bf16:
    case Precision::fp8:
    case Precision::mxfp8:
    case Precision::nvfp4:
      break;
  }
  return DType::bf16;
}

DType hidden_dtype_of(const ModelSpec& model, const BlockShape& shape) {
  const bool wide =
      shape.fp32_norms && lies_by_bitsandbytes(shape.frozen_weights) && model.num_mtp_layers == 0;
  return wide ? DType::fp32 : activation_dtype_of(shape);
}

DType LayerContext::activation_dtype() const {
  return activation_dtype_of(shape);
}

DType LayerContext::hidden_dtype() const {
  return hidden_dtype_of(model, shape);
}

DType LayerContext::linear_dtype() const {
  switch (shape.precision) {
    case Precision::bf16:
    case Precision::fp16:
    case Precision::fp32:
      return activation_dtype();
    case Precision::fp8:
    case Precision::mxfp8:
      return DType::fp8;
    case Precision::nvfp4:
      return DType::fp4;
  }
  return DType::bf16;
}

DType LayerContext::product_dtype() const {
  return recipe.form.fp8_scales ? activation_dtype() : linear_dtype();
}

SlotId LayerContext::linear_input(SlotId x, std::int64_t rows, std::int64_t cols, Pass pass,
                                  std::int64_t groups) {
  if (linear_dtype() == activation_dtype()) return x;
  if (recipe.form.fp8_scales) return quantized_input(x, rows, cols, pass);
  const SlotId cast = b.slot("fp8 input", linear_dtype(), rows, cols);
  const bool both_ways = shape.casts_both_ways || recipe.kernels.separate_casts;
  const RowwiseKind narrows = both_ways ? RowwiseKind::cast : RowwiseKind::quantize;
  const auto pass_over = [&](RowwiseKind kind, BlockBuilder::Slots reads, SlotId result) {
    std::get<Rowwise>(rowwise(kind, rows, cols, reads, {result}).work).groups = groups;
  };
  if (recipe.kernels.current_scaling && shape.precision == Precision::fp8) {
    const SlotId maxima = b.slot("fp8 maxima", DType::fp32, groups, 1);
    pass_over(RowwiseKind::amax, {x}, maxima);
    pass_over(narrows, {x, maxima}, cast);
  } else {
    pass_over(narrows, {x}, cast);
  }
  return cast;
}

SlotId LayerContext::gather_sequence(SlotId x, bool wait) {
  if (!shape.sequence_parallel || shape.tp == 1) return x;
  const DType dtype = b.at(x).dtype;
  const std::int64_t cols = b.at(x).shape[1];
  const SlotId whole = b.slot("gathered", dtype, tokens, cols);
  const Bytes bytes(static_cast<double>(tokens * cols) * size_of(dtype));
  b.aside(Stream::model_comm, Collective{CollectiveKind::all_gather, Axis::tp, bytes}, {x},
          {whole});
  if (wait) b.wait_for(Stream::model_comm);
  share_scale(x, whole);
  return wait && copies_parts(*this) ? copied(*this, whole, "gathered in order") : whole;
}

SlotId LayerContext::reduce_partial(SlotId x, std::string_view name, bool wait) {
  if (shape.tp == 1) return x;
  const std::int64_t cols = b.at(x).shape[1];
  const DType dtype = b.at(x).dtype;
  const Bytes bytes(static_cast<double>(tokens * cols) * size_of(dtype));
  const auto kind =
      shape.sequence_parallel ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce;
  if (shape.sequence_parallel && copies_parts(*this)) x = copied(*this, x, "partial by ranks");
  const SlotId sum = shape.sequence_parallel ? b.slot(name, dtype, local_tokens, cols) : x;
  b.aside(Stream::model_comm, Collective{kind, Axis::tp, bytes}, {x}, {sum});
  if (wait) b.wait_for(Stream::model_comm);
  return sum;
}

SlotId LayerContext::reduce_input_gradient(SlotId x, std::string_view name) {
  return reduce_partial(x, name,
                        recipe.kernels.waits_for_input_gradients && !shape.sequence_parallel);
}

SlotId LayerContext::exchange_heads(SlotId x, std::int64_t width, Pass to_heads,
                                    std::string_view name, int arrays) {
  const DType act = activation_dtype();
  const std::int64_t ranks = shape.cp;
  const bool arrives_by_heads = to_heads == Pass::forward;
  const std::int64_t rows = arrives_by_heads ? tokens * ranks : tokens;
  const std::int64_t cols = arrives_by_heads ? width / ranks : width;
  const SlotId leaving = b.slot("shares that leave", act, tokens, width);
  const SlotId arriving = b.slot("shares that arrive", act, tokens, width);
  const SlotId result = b.slot(name, act, rows, cols);
  rowwise(RowwiseKind::copy, tokens, width, {x}, {leaving}).role =
      arrives_by_heads ? Role::dispatch : Role::ungroup_rows;
  b.exposed(Collective{.kind = CollectiveKind::all_to_all,
                       .axis = Axis::cp,
                       .bytes = Bytes(static_cast<double>(tokens * width) * size_of(act)),
                       .calls = static_cast<double>(arrays)},
            {leaving}, {arriving});
  rowwise(RowwiseKind::copy, tokens, width, {arriving}, {result}).role =
      arrives_by_heads ? Role::group_rows : Role::combine;
  return result;
}

void LayerContext::linear(ParameterRole role, SlotId x, SlotId y, std::int64_t rows, std::int64_t n,
                          std::int64_t k) {
  const bool scaled = magnifies(role, n);
  const SlotId made = scaled ? b.slot("before magnitudes", b.at(y).dtype, rows, n) : y;
  const SlotId result = product_result(made, rows, n);
  product(role, narrowed(x, rows, k), result, rows, n, k);
  widen(result, made, rows, n);
  adapt(role, x, made, rows, n, k);
  if (scaled) magnify(role, made, y, rows, n, k);
}

// Hidden states in fp32 become the format of products before a layer of bitsandbytes' and its
// result fp32 again behind it (Linear4bit.forward in its nn/modules.py).
SlotId LayerContext::narrowed(SlotId x, std::int64_t rows, std::int64_t cols) {
  if (hidden_dtype() == activation_dtype() || b.at(x).dtype != hidden_dtype()) return x;
  const SlotId narrow = b.slot("narrowed for a product", activation_dtype(), rows, cols);
  rowwise(RowwiseKind::cast, rows, cols, {x}, {narrow});
  return narrow;
}

SlotId LayerContext::product_result(SlotId y, std::int64_t rows, std::int64_t cols) {
  if (hidden_dtype() == activation_dtype() || b.at(y).dtype != hidden_dtype()) return y;
  return b.slot("result of a product", activation_dtype(), rows, cols);
}

void LayerContext::widen(SlotId result, SlotId y, std::int64_t rows, std::int64_t cols) {
  if (result != y) rowwise(RowwiseKind::cast, rows, cols, {result}, {y});
}

Op& LayerContext::product(ParameterRole role, SlotId x, SlotId y, std::int64_t rows, std::int64_t n,
                          std::int64_t k) {
  if (is_quantized(x)) return quantized_linear(role, x, y, rows, n, k);
  const auto same = [role](const NarrowWeight& known) { return known.role == role; };
  if (recipe.kernels.separate_casts && linear_dtype() == DType::fp8 &&
      std::none_of(narrow_weights_.begin(), narrow_weights_.end(), same)) {
    const SlotId narrow = b.slot("fp8 weight", DType::fp8, n, k);
    rowwise(RowwiseKind::cast, n, k, {weights}, {narrow});
    narrow_weights_.push_back({.role = role, .narrow = narrow});
  }
  const SlotId weight = product_weight(weights, n, k);
  Op& op = b.compute(Gemm{.m = rows, .n = n, .k = k, .dtype = product_dtype()}, {x, weight}, {y});
  op.parameter = b.parameter(role);
  return op;
}

void LayerContext::linear_dgrad(ParameterRole role, SlotId dy, SlotId dx, std::int64_t rows,
                                std::int64_t n, std::int64_t k) {
  if (is_quantized(dy)) return quantized_dgrad(role, dy, dx, rows, n, k);
  const SlotId own = magnify_backward(role, dy, rows, n);
  const SlotId weight = product_weight(weights_backward, n, k);
  const SlotId narrow = narrowed(own, rows, n), result = product_result(dx, rows, k);
  Op& op = b.compute(Gemm{.m = rows, .n = k, .k = n, .dtype = product_dtype()}, {narrow, weight},
                     {result});
  op.parameter = b.parameter(role);
  op.role = Role::input_gradient;
  widen(result, dx, rows, k);
  adapt_dgrad(role, recipe.kernels.adapters_in_products ? own : dy, dx, rows, n, k);
}

// Pieces of an overlapped product: Transformer Engine's userbuffers split by 4
// (docs/reference/physics.md 3.1).
constexpr std::int64_t kOverlapPieces = 4;

SlotId LayerContext::gathered_linear(ParameterRole role, SlotId x, SlotId y, std::int64_t n,
                                     std::int64_t k) {
  const auto in_pieces = [](Op& op, std::int64_t piece) {
    op.piece = static_cast<std::uint8_t>(piece);
    op.pieces = kOverlapPieces;
  };
  if (!overlaps_tp()) {
    const SlotId whole = gather_sequence(x);
    linear(role, whole, y, tokens, n, k);
    return whole;
  }
  const DType dtype = b.at(x).dtype;
  const std::int64_t cols = b.at(x).shape[1];
  const SlotId whole = b.slot("gathered", dtype, tokens, cols);
  share_scale(x, whole);
  const Bytes piece(static_cast<double>(tokens * cols) * size_of(dtype) / kOverlapPieces);
  for (std::int64_t i = 0; i < kOverlapPieces; ++i) {
    Op& gather = b.aside(Stream::model_comm,
                         Collective{CollectiveKind::all_gather, Axis::tp, piece}, {x}, {whole});
    in_pieces(gather, i);
    if (i > 0) {
      gather.after = {};  // its input was there before the first piece
      in_pieces(product(role, whole, y, tokens / kOverlapPieces, n, k), i - 1);
    }
    b.wait_for(Stream::model_comm);
    b.flush();
  }
  in_pieces(product(role, whole, y, tokens / kOverlapPieces, n, k), kOverlapPieces - 1);
  // Adapters read what the pieces have brought together.
  adapt(role, whole, y, tokens, n, k);
  return whole;
}

SlotId LayerContext::linear_reduced(ParameterRole role, SlotId x, std::int64_t n, std::int64_t k,
                                    std::string_view name) {
  const SlotId partial = b.slot("partial", activation_dtype(), tokens, n);
  if (!overlaps_tp()) {
    const bool scaled = magnifies(role, n);
    const SlotId made =
        scaled ? b.slot("before magnitudes", activation_dtype(), tokens, n) : partial;
    product(role, narrowed(x, tokens, k), made, tokens, n, k);
    // Parallel adapters sum over the ranks themselves, and come to what the layer has summed.
    if (!shape.parallel_adapters) adapt(role, x, made, tokens, n, k);
    if (scaled) magnify(role, made, partial, tokens, n, k);
    const SlotId sum = reduce_partial(partial, name);
    if (shape.parallel_adapters) adapt(role, x, sum, tokens, n, k);
    return sum;
  }
  const DType dtype = activation_dtype();
  const SlotId sum = b.slot(name, dtype, local_tokens, n);
  const Bytes piece(static_cast<double>(tokens * n) * size_of(dtype) / kOverlapPieces);
  for (std::int64_t i = 0; i < kOverlapPieces; ++i) {
    Op& piece_product = product(role, x, partial, tokens / kOverlapPieces, n, k);
    piece_product.piece = static_cast<std::uint8_t>(i);
    piece_product.pieces = kOverlapPieces;
    Op& reduce =
        b.aside(Stream::model_comm, Collective{CollectiveKind::reduce_scatter, Axis::tp, piece},
                {partial}, {sum});
    reduce.piece = static_cast<std::uint8_t>(i);
    reduce.pieces = kOverlapPieces;
  }
  b.wait_for(Stream::model_comm);
  if (shape.parallel_adapters) adapt(role, x, sum, tokens, n, k);
  return sum;
}

void LayerContext::linear_wgrad(ParameterRole role, SlotId dy, SlotId x, std::int64_t rows,
                                std::int64_t n, std::int64_t k) {
  if (shape.frozen) return adapt_wgrad(role, dy, x, rows, n, k);
  if (is_quantized(dy)) return quantized_wgrad(role, dy, x, rows, n, k);
  weight_gradient(b.parameter(role), {.m = n, .n = k, .k = rows, .dtype = product_dtype()}, dy, x);
}

ParameterRole LayerContext::packed_role(ParameterRole first, std::size_t i) const {
  const auto at = static_cast<std::size_t>(b.parameter(first)) + i;
  return b.parameters()[at].whole.role;
}

void LayerContext::packed_dgrad(ParameterRole role, SlotId dy, SlotId dx, std::int64_t rows,
                                const Widths& n, std::int64_t k) {
  if (!projects_apart()) {
    const std::int64_t all = std::accumulate(n.begin(), n.end(), std::int64_t{0});
    return linear_dgrad(role, dy, dx, rows, all, k);
  }
  // A compiler adds up in one pass, or in the norm's backward where nothing lies between.
  const bool in_norm = recipe.kernels.fused && shape.tp == 1;
  SlotId first = kNoSlot;
  for (std::size_t i = 0; i < n.size(); ++i) {
    const bool apart = i > 0 && !in_norm;
    const SlotId part = apart ? b.slot("dx of one layer", activation_dtype(), rows, k) : dx;
    linear_dgrad(packed_role(role, i), dy, part, rows, n[i], k);
    const bool last = i + 1 == n.size();
    if (apart && (last || !recipe.kernels.fused)) {
      rowwise(RowwiseKind::add, rows, k, {dx, part, first}, {dx});
    } else if (apart) {
      first = part;
    }
  }
}

void LayerContext::packed_wgrad(ParameterRole role, SlotId dy, SlotId x, std::int64_t rows,
                                const Widths& n, std::int64_t k) {
  if (!projects_apart()) {
    const std::int64_t all = std::accumulate(n.begin(), n.end(), std::int64_t{0});
    return linear_wgrad(role, dy, x, rows, all, k);
  }
  for (std::size_t i = 0; i < n.size(); ++i) {
    linear_wgrad(packed_role(role, i), dy, x, rows, n[i], k);
  }
}

void LayerContext::weight_gradient(std::int16_t parameter, Gemm product, SlotId dy, SlotId x) {
  if (gradients != kNoSlot) weight_gradient(parameter, product, dy, x, gradients);
}

void LayerContext::weight_gradient(std::int16_t parameter, Gemm product, SlotId dy, SlotId x,
                                   SlotId sum) {
  product.accumulate_fp32 = products_sum();
  Op& op = b.compute(product, {dy, x}, {sum});
  op.parameter = parameter;
  op.role = Role::weight_gradient;
  accumulate_apart(sum, product.m, product.n);
}

bool LayerContext::sums_in_fp32() const {
  const bool fp32 = recipe.states.fp32_accumulation && shape.grad_dtype == DType::fp32;
  return fp32 || widens_gradients(recipe, shape);
}

bool LayerContext::products_sum() const {
  return sums_in_fp32() && recipe.states.fp32_accumulation &&
         recipe.kernels.fused_gradient_accumulation && shape.gradient_accumulation_fusion;
}

// Autograd, or a hook, adds it to the last microbatch's with a kernel of its own.
void LayerContext::accumulate_apart(SlotId sum, std::int64_t rows, std::int64_t cols) {
  // Products that are to add to bf16 gradients do so without a kernel more.
  const bool apart = sums_in_fp32() || !shape.gradient_accumulation_fusion;
  const bool hooked = apart && !products_sum();
  const bool by_autograd =
      !recipe.states.fp32_accumulation && shape.zero < 2 && !shape.fresh_gradients;
  if (hooked || by_autograd) accumulate(sum, sum, rows, cols);
}

void LayerContext::accumulate(SlotId fresh, SlotId sum, std::int64_t rows, std::int64_t cols) {
  const bool fp32 = sums_in_fp32();
  b.compute(Rowwise{.kind = fp32 ? RowwiseKind::accumulate : RowwiseKind::add,
                    .rows = rows,
                    .cols = cols,
                    .dtype = fp32 ? DType::fp32 : activation_dtype(),
                    .fused = !widens_gradients(recipe, shape)},
            {fresh, sum}, {sum});
}

LossParts LayerContext::loss_parts() const {
  if (shape.kind != BlockKind::head) return {1, tokens};
  if (shape.fpdt_chunk > 0) {
    const std::int64_t count = kLossPartsOfChunk * (shape.seq_len / shape.fpdt_chunk);
    return {count, tokens / count};
  }
  return qplan::loss_parts(model, loss(), tokens);
}

AttentionKernel LayerContext::attention_kernel() const {
  if (shape.fp8_dot_product_attention) return AttentionKernel::fused_fp8;
  switch (shape.attention_backend) {
    case AttentionBackend::automatic:
      return recipe.kernels.attention;
    case AttentionBackend::flash:
      return AttentionKernel::flash2;
    case AttentionBackend::fused:
      return AttentionKernel::fused;
    case AttentionBackend::unfused:
      return AttentionKernel::unfused;
  }
  return recipe.kernels.attention;
}

Op& LayerContext::rowwise(RowwiseKind kind, std::int64_t rows, std::int64_t cols,
                          BlockBuilder::Slots reads, BlockBuilder::Slots writes) {
  const bool loss =
      kind == RowwiseKind::cross_entropy || kind == RowwiseKind::cross_entropy_backward;
  const bool norm = kind == RowwiseKind::rms_norm || kind == RowwiseKind::rms_norm_backward;
  const bool rope = kind == RowwiseKind::rope || kind == RowwiseKind::rope_backward;
  const bool scaled_rope = rope && !recipe.kernels.fused_rope_magnitude && !model.mla &&
                           rope_magnitude(model.rope_scaling) != 1;
  const bool cast = kind == RowwiseKind::cast && recipe.kernels.separate_casts;
  const bool sorts = kind == RowwiseKind::permute || kind == RowwiseKind::unpermute ||
                     kind == RowwiseKind::group_rows;
  const bool scales = kind == RowwiseKind::scale_rows || kind == RowwiseKind::scale_rows_backward;
  const bool apart = cast || scaled_rope || (sorts && shape.sorts_by_torch) ||
                     (scales && recipe.kernels.one_product_per_expert);
  const bool swiglu = kind == RowwiseKind::swiglu || kind == RowwiseKind::swiglu_backward;
  const bool one_kernel = (norm && fuses_norms()) ||
                          (rope && shape.module_kernels != ModuleKernels::eager) ||
                          (swiglu && fuses_swiglu());
  const bool fused = (recipe.kernels.fused && !apart) || one_kernel;
  const bool on_hidden = norm || swiglu || kind == RowwiseKind::add;
  const auto first =
      std::find_if(reads.begin(), reads.end(), [](SlotId s) { return s != kNoSlot; });
  const bool wide = on_hidden && first != reads.end() && b.at(*first).dtype == hidden_dtype();
  return b.compute(Rowwise{.kind = kind,
                           .rows = rows,
                           .cols = cols,
                           .dtype = wide ? hidden_dtype() : activation_dtype(),
                           .fused = loss ? this->loss().fused : fused},
                   reads, writes);
}

// Eager Hugging Face modules keep 2f + 8h bytes a token more, with norms of queries and keys
// 4(nh+nkv)d besides (docs/reference/physics.md 5.3, whose runs are all Qwen3's).
SlotId LayerContext::eager_copy(std::string_view name, DType dtype, std::int64_t rows,
                                std::int64_t cols) {
  return recipe.keeps.eager_copies ? b.slot(name, dtype, rows, cols) : kNoSlot;
}

// RMSNorm modules compute in fp32 what torch's layer_norm kernel converts on the fly.
SlotId LayerContext::eager_norm_copy() {
  if (model.norm != Norm::rms_norm || shape.module_kernels != ModuleKernels::eager) return kNoSlot;
  if (hidden_dtype() == DType::fp32) return kNoSlot;  // the input is in fp32 itself
  // 1 + weight multiplies in fp32: what it multiplies is kept so, not in 16 bits (Gemma3RMSNorm,
  // which Qwen3-Next's is; NemotronHRMSNorm).
  // (A frozen weight has no gradient to keep it for.)
  const bool wide = (model.zero_centered_norms || model.wide_norms) && !shape.frozen;
  const std::int64_t wider = wide ? hidden / 2 : 0;
  return eager_copy("norm in fp32", DType::fp32, local_tokens, hidden + wider);
}

// An eager norm keeps two things: its input in fp32, for the input's gradient, and the normed rows,
// as wide as the input itself, for the weight's. Without a gradient of the weight the first is all.
SlotId LayerContext::input_of_norm(SlotId x, SlotId kept) const {
  return shape.frozen && kept != kNoSlot ? kNoSlot : x;
}

void LayerContext::norm_forward(ParameterRole role, SlotId x, SlotId y, std::int64_t rows,
                                std::int64_t cols, SlotId kept) {
  const bool rms = model.norm == Norm::rms_norm;
  Op& op = rowwise(rms ? RowwiseKind::rms_norm : RowwiseKind::layer_norm, rows, cols, {x, weights},
                   {y, kept});
  op.parameter = b.parameter(role);
}

void LayerContext::norm_backward(ParameterRole role, SlotId x, SlotId dy, SlotId residual,
                                 SlotId dx, std::int64_t rows, std::int64_t cols, SlotId kept) {
  const bool rms = model.norm == Norm::rms_norm;
  const SlotId input = input_of_norm(x, kept);
  Op& op = rowwise(rms ? RowwiseKind::rms_norm_backward : RowwiseKind::layer_norm_backward, rows,
                   cols, {input, dy, weights_backward, residual, kept}, {dx, gradients});
  op.parameter = b.parameter(role);
}

}  // namespace qplan
