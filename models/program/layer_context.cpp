#include "models/program/layer_context.h"

namespace qplan {

LayerContext::LayerContext(const ModelSpec& m, const Recipe& r, const BlockShape& s,
                           BlockBuilder& builder)
    : model(m), recipe(r), shape(s), b(builder) {
  tokens = s.micro_batch_size * s.seq_len / s.cp;
  local_tokens = s.sequence_parallel ? tokens / s.tp : tokens;
  hidden = m.hidden_size;
}

DType LayerContext::activation_dtype() const {
  return shape.precision == Precision::fp16 ? DType::fp16 : DType::bf16;
}

DType LayerContext::linear_dtype() const {
  switch (shape.precision) {
    case Precision::bf16:
    case Precision::fp16:
      return activation_dtype();
    case Precision::fp8:
    case Precision::mxfp8:
      return DType::fp8;
    case Precision::nvfp4:
      return DType::fp4;
  }
  return DType::bf16;
}

SlotId LayerContext::linear_input(SlotId x, std::int64_t rows, std::int64_t cols) {
  if (linear_dtype() == activation_dtype()) return x;
  const SlotId cast = b.slot("fp8 input", linear_dtype(), rows, cols);
  rowwise(RowwiseKind::cast, rows, cols, {x}, {cast});
  return cast;
}

SlotId LayerContext::gather_sequence(SlotId x, std::int64_t cols, bool wait) {
  if (!shape.sequence_parallel || shape.tp == 1) return x;
  const DType dtype = b.at(x).dtype;
  const SlotId whole = b.slot("gathered", dtype, tokens, cols);
  const Bytes bytes(static_cast<double>(tokens * cols) * size_of(dtype));
  b.aside(Stream::model_comm, Collective{CollectiveKind::all_gather, Axis::tp, bytes}, {x},
          {whole});
  if (wait) b.wait_for(Stream::model_comm);
  return whole;
}

SlotId LayerContext::reduce_partial(SlotId x, std::int64_t cols, std::string_view name, bool wait) {
  if (shape.tp == 1) return x;
  const DType dtype = b.at(x).dtype;
  const Bytes bytes(static_cast<double>(tokens * cols) * size_of(dtype));
  const auto kind =
      shape.sequence_parallel ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce;
  const SlotId sum = shape.sequence_parallel ? b.slot(name, dtype, local_tokens, cols) : x;
  b.aside(Stream::model_comm, Collective{kind, Axis::tp, bytes}, {x}, {sum});
  if (wait) b.wait_for(Stream::model_comm);
  return sum;
}

void LayerContext::linear(SlotId x, SlotId y, std::int64_t rows, std::int64_t n, std::int64_t k) {
  b.compute(Gemm{.m = rows, .n = n, .k = k, .dtype = linear_dtype()}, {x, weights}, {y});
}

void LayerContext::linear_dgrad(SlotId dy, SlotId dx, std::int64_t rows, std::int64_t n,
                                std::int64_t k) {
  b.compute(Gemm{.m = rows, .n = k, .k = n, .dtype = linear_dtype()}, {dy, weights_backward}, {dx});
}

// Pieces of an overlapped product: Transformer Engine's userbuffers split by 4 (physics.md 3.1).
constexpr std::int64_t kOverlapPieces = 4;

SlotId LayerContext::gathered_linear(SlotId x, SlotId y, std::int64_t n, std::int64_t k) {
  if (!overlaps_tp()) {
    const SlotId whole = gather_sequence(x, k);
    linear(whole, y, tokens, n, k);
    return whole;
  }
  const DType dtype = b.at(x).dtype;
  const SlotId whole = b.slot("gathered", dtype, tokens, k);
  const Bytes piece(static_cast<double>(tokens * k) * size_of(dtype) / kOverlapPieces);
  for (std::int64_t i = 0; i < kOverlapPieces; ++i) {
    Op& gather = b.aside(Stream::model_comm,
                         Collective{CollectiveKind::all_gather, Axis::tp, piece}, {x}, {whole});
    if (i > 0) {
      gather.after = {};  // its input was there before the first piece
      linear(whole, y, tokens / kOverlapPieces, n, k);
    }
    b.wait_for(Stream::model_comm);
    b.flush();
  }
  linear(whole, y, tokens / kOverlapPieces, n, k);
  return whole;
}

SlotId LayerContext::linear_reduced(SlotId x, std::int64_t n, std::int64_t k,
                                    std::string_view name) {
  const SlotId partial = b.slot("partial", activation_dtype(), tokens, n);
  if (!overlaps_tp()) {
    linear(x, partial, tokens, n, k);
    return reduce_partial(partial, n, name);
  }
  const DType dtype = activation_dtype();
  const SlotId sum = b.slot(name, dtype, local_tokens, n);
  const Bytes piece(static_cast<double>(tokens * n) * size_of(dtype) / kOverlapPieces);
  for (std::int64_t i = 0; i < kOverlapPieces; ++i) {
    linear(x, partial, tokens / kOverlapPieces, n, k);
    b.aside(Stream::model_comm, Collective{CollectiveKind::reduce_scatter, Axis::tp, piece},
            {partial}, {sum});
  }
  b.wait_for(Stream::model_comm);
  return sum;
}

void LayerContext::linear_wgrad(SlotId dy, SlotId x, std::int64_t rows, std::int64_t n,
                                std::int64_t k) {
  b.compute(
      Gemm{.m = n,
           .n = k,
           .k = rows,
           .dtype = linear_dtype(),
           .accumulate_fp32 = recipe.fp32_gradient_accumulation && shape.grad_dtype == DType::fp32},
      {dy, x}, {gradients});
  // Autograd adds a new gradient to the last microbatch's with a kernel of its own.
  if (!recipe.fp32_gradient_accumulation && shape.zero < 2) {
    rowwise(RowwiseKind::add, 1, n * k, {gradients}, {gradients});
  }
}

void LayerContext::rowwise(RowwiseKind kind, std::int64_t rows, std::int64_t cols,
                           BlockBuilder::Slots reads, BlockBuilder::Slots writes) {
  const bool loss =
      kind == RowwiseKind::cross_entropy || kind == RowwiseKind::cross_entropy_backward;
  b.compute(Rowwise{.kind = kind,
                    .rows = rows,
                    .cols = cols,
                    .dtype = activation_dtype(),
                    .fused = loss ? recipe.fused_loss : recipe.fused_kernels},
            reads, writes);
}

// Eager Hugging Face modules keep 2f + 8h + 4(nh+nkv)d bytes a token more (physics.md 5.3).
SlotId LayerContext::eager_copy(std::string_view name, DType dtype, std::int64_t rows,
                                std::int64_t cols) {
  return recipe.keeps_eager_copies ? b.slot(name, dtype, rows, cols) : kNoSlot;
}

// RMSNorm modules compute in fp32 what torch's layer_norm kernel converts on the fly.
SlotId LayerContext::eager_norm_copy() {
  if (model.norm != Norm::rms_norm) return kNoSlot;
  return eager_copy("norm in fp32", DType::fp32, local_tokens, hidden);
}

void LayerContext::norm_forward(SlotId x, SlotId y, std::int64_t rows, std::int64_t cols,
                                SlotId kept) {
  const bool rms = model.norm == Norm::rms_norm;
  rowwise(rms ? RowwiseKind::rms_norm : RowwiseKind::layer_norm, rows, cols, {x, weights},
          {y, kept});
}

void LayerContext::norm_backward(SlotId x, SlotId dy, SlotId residual, SlotId dx, std::int64_t rows,
                                 std::int64_t cols, SlotId kept) {
  const bool rms = model.norm == Norm::rms_norm;
  rowwise(rms ? RowwiseKind::rms_norm_backward : RowwiseKind::layer_norm_backward, rows, cols,
          {x, dy, residual, kept}, {dx, gradients});
}

}  // namespace qplan
