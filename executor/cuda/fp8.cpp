// Linear layers in fp8: scales, casts, transposed copies and products (models/program/
// fp8_linear.cpp).

#include "executor/cuda/ops.h"
#include "models/error.h"

namespace qplan {
namespace {

kernels::Fp8 format_of(const Tensor& tensor) {
  QPLAN_CHECK(is_fp8(tensor.dtype), "fp8 has two formats");
  return tensor.dtype == DType::fp8 ? kernels::Fp8::e4m3 : kernels::Fp8::e5m2;
}

}  // namespace

void launch_amax(CudaRank& rank, const Command& c, const Rowwise& work, cudaStream_t stream) {
  const Tensor x = narrowed_operand(rank, c, work);
  kernels::quantization_scale(float_of(rank.tensor(c, c.writes[0])), bf16_of(x), x.elements(),
                              stream);
}

void launch_quantize(CudaRank& rank, const Command& c, const Rowwise& work, cudaStream_t stream) {
  const Tensor x = narrowed_operand(rank, c, work), y = rank.tensor(c, c.writes[0]);
  const float* scale = float_of(rank.tensor(c, c.reads[1]));
  if (c.op->role == Role::transpose) {
    kernels::quantize_transposed(y.data, bf16_of(x), scale, format_of(y), x.rows, x.cols, stream);
  } else {
    kernels::quantize(y.data, bf16_of(x), scale, format_of(y), x.elements(), stream);
  }
}

void launch_transpose(CudaRank& rank, const Command& c, cudaStream_t stream) {
  const Tensor x = rank.tensor(c, c.reads[0]), y = rank.tensor(c, c.writes[0]);
  kernels::transpose_bytes(y.data, x.data, x.rows, x.cols, stream);
}

// c = a b^T, scaled; a weight gradient is added to. Transformer Engine too sums fast in forward
// alone (Float8CurrentScaling: use_split_accumulator in dgrad and wgrad).
void launch_fp8_product(CudaRank& rank, const Command& c, const Gemm& work, cudaStream_t stream) {
  const Tensor a = rank.tensor(c, c.reads[0]), b = rank.tensor(c, c.reads[1]);
  const bool gradient = c.op->role == Role::weight_gradient;
  const Tensor slot = rank.tensor(c, c.writes[0]);
  const Tensor out = gradient ? weight_of(rank, c, slot, work.m).weight : slot;
  rank.blas.multiply({.m = work.m,
                      .n = work.n,
                      .k = work.k,
                      .a_stride = a.cols,
                      .b_stride = b.cols,
                      .c_stride = out.cols,
                      .b_transposed = true,
                      .accumulate = gradient,
                      .a = a.dtype,
                      .b = b.dtype,
                      .out = out.dtype,
                      .fast_accumulation = c.op->role == Role::plain},
                     a.data, b.data, out.data, stream,
                     {float_of(rank.tensor(c, c.reads[2])), float_of(rank.tensor(c, c.reads[3]))});
}

}  // namespace qplan
