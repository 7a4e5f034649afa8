// A linear layer in fp8 as our executor runs it: tensorwise current scaling, e4m3 forward and e5m2
// for gradients (Transformer Engine's Float8CurrentScaling, format hybrid). Every array that
// becomes fp8 is read twice, for its scale and to be quantized; Hopper multiplies fp8 only where
// the contracted side lies in rows, so backward makes transposed copies.
//
// A scale is a power of two (executor/math/quantize.h): how a number is rounded does not depend on
// which ranks share a scale, but for what is too small for it.

#include "models/program/layer_context.h"

namespace qplan {

bool LayerContext::is_quantized(SlotId x) {
  const DType dtype = b.at(x).dtype;
  return recipe.form.fp8_scales && is_fp8(dtype);
}

SlotId LayerContext::scale_of(SlotId x) const {
  // The last one: an array may be cast again.
  for (auto it = scales_.rbegin(); it != scales_.rend(); ++it) {
    if (it->first == x) return it->second;
  }
  return kNoSlot;
}

void LayerContext::share_scale(SlotId x, SlotId to) {
  if (const SlotId scale = scale_of(x); scale != kNoSlot) scales_.emplace_back(to, scale);
}

SlotId LayerContext::quantized_input(SlotId x, std::int64_t rows, std::int64_t cols, Pass pass) {
  const SlotId scale = b.slot("fp8 scale", DType::fp32, 1, 1);
  rowwise(RowwiseKind::amax, rows, cols, {x}, {scale});
  if (local_tokens != tokens && rows == local_tokens) {
    // A shard that is gathered before its product.
    b.aside(Stream::model_comm,
            Collective{CollectiveKind::all_reduce, Axis::tp, Bytes(size_of(DType::fp32))}, {scale},
            {scale})
        .role = Role::maximum;
    b.wait_for(Stream::model_comm);
  }
  const DType format = pass == Pass::forward ? DType::fp8 : DType::fp8_e5m2;
  const SlotId narrow = b.slot("fp8 input", format, rows, cols);
  rowwise(RowwiseKind::quantize, rows, cols, {x, scale}, {narrow});
  scales_.emplace_back(x, scale);
  scales_.emplace_back(narrow, scale);
  return narrow;
}

LayerContext::NarrowWeight LayerContext::narrow_weight(ParameterRole role, std::int64_t n,
                                                       std::int64_t k) {
  for (const NarrowWeight& known : narrow_weights_) {
    if (known.role == role) return known;  // an earlier piece of the product made it
  }
  const NarrowWeight weight{role, b.slot("fp8 weight", DType::fp8, n, k),
                            b.slot("fp8 weight scale", DType::fp32, 1, 1)};
  rowwise(RowwiseKind::amax, n, k, {weights}, {weight.scale}).parameter = b.parameter(role);
  rowwise(RowwiseKind::quantize, n, k, {weights, weight.scale}, {weight.narrow}).parameter =
      b.parameter(role);
  narrow_weights_.push_back(weight);
  return weight;
}

// In fp8 with rows and columns changed: of fp8 numbers a copy, of others a cast by the scale that
// forward found.
SlotId LayerContext::transposed(SlotId x, DType format, std::int64_t rows, std::int64_t cols) {
  const SlotId turned = b.slot("fp8 transposed", format, cols, rows);
  if (is_quantized(x)) {
    b.compute(Rowwise{.kind = RowwiseKind::copy, .rows = rows, .cols = cols, .dtype = DType::fp8},
              {x}, {turned})
        .role = Role::transpose;
  } else {
    rowwise(RowwiseKind::quantize, rows, cols, {x, scale_of(x)}, {turned}).role = Role::transpose;
  }
  return turned;
}

Op& LayerContext::quantized_linear(ParameterRole role, SlotId x, SlotId y, std::int64_t rows,
                                   std::int64_t n, std::int64_t k) {
  const NarrowWeight weight = narrow_weight(role, n, k);
  Op& op = b.compute(Gemm{.m = rows, .n = n, .k = k, .dtype = DType::fp8},
                     {x, weight.narrow, scale_of(x), weight.scale}, {y});
  op.parameter = b.parameter(role);
  return op;
}

void LayerContext::quantized_dgrad(ParameterRole role, SlotId dy, SlotId dx, std::int64_t rows,
                                   std::int64_t n, std::int64_t k) {
  const SlotId scale = narrow_weight(role, n, k).scale;
  const SlotId turned = b.slot("fp8 weight transposed", DType::fp8, k, n);
  Op& cast = rowwise(RowwiseKind::quantize, n, k, {weights_backward, scale}, {turned});
  cast.parameter = b.parameter(role);
  cast.role = Role::transpose;
  Op& op = b.compute(Gemm{.m = rows, .n = k, .k = n, .dtype = DType::fp8},
                     {dy, turned, scale_of(dy), scale}, {dx});
  op.parameter = b.parameter(role);
  op.role = Role::input_gradient;
}

void LayerContext::quantized_wgrad(ParameterRole role, SlotId dy, SlotId x, std::int64_t rows,
                                   std::int64_t n, std::int64_t k) {
  const SlotId dy_turned = transposed(dy, b.at(dy).dtype, rows, n);
  const SlotId x_turned = transposed(x, DType::fp8, rows, k);
  Op& op = b.compute(Gemm{.m = n,
                          .n = k,
                          .k = rows,
                          .dtype = DType::fp8,
                          .accumulate_fp32 = shape.grad_dtype == DType::fp32},
                     {dy_turned, x_turned, scale_of(dy), scale_of(x)}, {gradients});
  op.parameter = b.parameter(role);
  op.role = Role::weight_gradient;
}

}  // namespace qplan
