// Linear layers and their adapters: y = x W^T, and the gradients of both operands.

#include "executor/cuda/ops.h"

namespace qplan {
namespace {

// y[rows, n] = x[rows, k] W^T (+ bias).
void forward(CudaRank& rank, const Command& c, const Gemm& work, cudaStream_t stream) {
  const Tensor x = rank.tensor(c, c.reads[0]), y = rank.tensor(c, c.writes[0]);
  const Weight w = weight_of(rank, c, rank.tensor(c, c.reads[1]), work.n);
  const bool biased = w.bias.data != nullptr && adds_bias(rank, parameter_of(rank, c));
  // A router's logits are fp32, and cuBLASLt would want their bias to be so, too.
  const bool apart = biased && y.dtype == DType::fp32;
  const void* bias = biased && !apart ? w.bias.data : nullptr;
  const Piece piece = piece_of(rank, *c.op, y.rows);
  for (std::int64_t r = 0; r < piece.ranks; ++r) {
    const std::int64_t first = r * piece.share + piece.first;
    rank.blas.multiply({.m = piece.count,
                        .n = work.n,
                        .k = work.k,
                        .a_stride = x.cols,
                        .b_stride = w.weight.cols,
                        .c_stride = y.cols,
                        .b_transposed = true,
                        .out = y.dtype},
                       x.row_range(first, piece.count).data, w.weight.data,
                       y.row_range(first, piece.count).data, stream, {}, bias);
  }
  if (apart) kernels::add_bias(float_of(y), bf16_of(w.bias), y.rows, y.cols, stream);
}

// Products with an adapter's B, and the one that takes a gradient through its A.
// y[:, columns] += scale u[:, inner] B^T.
void adapter_forward(CudaRank& rank, const Command& c, cudaStream_t stream) {
  const AdapterView view = adapter_view(rank, c);
  const Tensor u = rank.tensor(c, c.reads[0]), y = rank.tensor(c, c.writes[0]);
  const Tensor b = parameter_in(rank.tensor(c, c.reads[1]), parameter_of(rank, c));
  rank.blas.multiply({.m = y.rows,
                      .n = view.width,
                      .k = view.rank,
                      .a_stride = u.cols,
                      .b_stride = b.cols,
                      .c_stride = y.cols,
                      .b_transposed = true,
                      .accumulate = true,
                      .out = y.dtype},
                     u.part(view.inner, 1, 1).data, b.data, y.part(view.column, 1, 1).data, stream,
                     {}, nullptr, view.scale);
}

// du[:, inner] = scale dy[:, columns] B; or dx += du A.
void adapter_input_gradient(CudaRank& rank, const Command& c, const Gemm& work,
                            cudaStream_t stream) {
  const Tensor dy = rank.tensor(c, c.reads[0]), dx = rank.tensor(c, c.writes[0]);
  const Tensor weights = rank.tensor(c, c.reads[1]);
  if (adapter_of(rank, c) == Adapter::lora_a) {
    const Tensor a = weight_of(rank, c, weights, work.k).weight;
    return rank.blas.multiply({.m = dy.rows,
                               .n = work.n,
                               .k = work.k,
                               .a_stride = dy.cols,
                               .b_stride = a.cols,
                               .c_stride = dx.cols,
                               .accumulate = true,
                               .out = dx.dtype},
                              dy.data, a.data, dx.data, stream);
  }
  const AdapterView view = adapter_view(rank, c);
  const Tensor b = parameter_in(weights, parameter_of(rank, c));
  rank.blas.multiply({.m = dy.rows,
                      .n = view.rank,
                      .k = view.width,
                      .a_stride = dy.cols,
                      .b_stride = b.cols,
                      .c_stride = dx.cols,
                      .out = dx.dtype},
                     dy.part(view.column, 1, 1).data, b.data, dx.part(view.inner, 1, 1).data,
                     stream, {}, nullptr, view.scale);
}

// dB += scale dy[:, columns]^T u[:, inner].
void adapter_weight_gradient(CudaRank& rank, const Command& c, cudaStream_t stream) {
  const AdapterView view = adapter_view(rank, c);
  const Tensor dy = rank.tensor(c, c.reads[0]), u = rank.tensor(c, c.reads[1]);
  const Tensor db = parameter_in(rank.tensor(c, c.writes[0]), parameter_of(rank, c));
  rank.blas.multiply({.m = view.width,
                      .n = view.rank,
                      .k = dy.rows,
                      .a_stride = dy.cols,
                      .b_stride = u.cols,
                      .c_stride = db.cols,
                      .a_transposed = true,
                      .accumulate = true,
                      .out = db.dtype},
                     dy.part(view.column, 1, 1).data, u.part(view.inner, 1, 1).data, db.data,
                     stream, {}, nullptr, view.scale);
}

// Gradients of a router's logits are fp32; products take bf16.
Tensor narrowed(CudaRank& rank, const Tensor& x, cudaStream_t stream) {
  if (x.dtype != DType::fp32) return x;
  QPLAN_CHECK(2 * x.elements() <= kernels::kScratchBytes, "a router's logits fit the scratch");
  const Tensor narrow{static_cast<std::byte*>(rank.scratch()), DType::bf16, x.rows, x.cols};
  kernels::narrow(bf16_of(narrow), float_of(x), x.elements(), stream);
  return narrow;
}

// dx[rows, n] = dy[rows, k] W.
void input_gradient(CudaRank& rank, const Command& c, const Gemm& work, cudaStream_t stream) {
  const Tensor dy = narrowed(rank, rank.tensor(c, c.reads[0]), stream);
  const Tensor dx = rank.tensor(c, c.writes[0]);
  const Weight w = weight_of(rank, c, rank.tensor(c, c.reads[1]), work.k);
  rank.blas.multiply({.m = dy.rows,
                      .n = work.n,
                      .k = work.k,
                      .a_stride = dy.cols,
                      .b_stride = w.weight.cols,
                      .c_stride = dx.cols,
                      .out = dx.dtype},
                     dy.data, w.weight.data, dx.data, stream);
}

// Of a product's bias, as many columns as dy has.
void bias_gradient(CudaRank& rank, const Tensor& dbias, const Tensor& dy, cudaStream_t stream) {
  auto* scratch = static_cast<float*>(rank.scratch());
  if (dy.dtype == DType::fp32) {
    kernels::bias_gradient(float_of(dbias), float_of(dy), dy.rows, dy.cols, scratch, stream);
  } else {
    kernels::bias_gradient(float_of(dbias), bf16_of(dy), dy.rows, dy.cols, scratch, stream);
  }
}

// dW[m, n] += dy[rows, m]^T x[rows, n]; dbias[m] += the sum over rows of dy.
void weight_gradient(CudaRank& rank, const Command& c, const Gemm& work, cudaStream_t stream) {
  const Tensor whole = rank.tensor(c, c.reads[0]), dy = narrowed(rank, whole, stream);
  const Tensor x = rank.tensor(c, c.reads[1]);
  const Weight w = weight_of(rank, c, rank.tensor(c, c.writes[0]), work.m);
  rank.blas.multiply({.m = work.m,
                      .n = work.n,
                      .k = dy.rows,
                      .a_stride = dy.cols,
                      .b_stride = x.cols,
                      .c_stride = w.weight.cols,
                      .a_transposed = true,
                      .accumulate = true,
                      .out = w.weight.dtype},
                     dy.data, x.data, w.weight.data, stream);
  if (w.bias.data != nullptr) bias_gradient(rank, w.bias, whole, stream);
}

}  // namespace

void launch_product(CudaRank& rank, const Command& c, const Gemm& work, cudaStream_t stream) {
  if (work.dtype == DType::fp8) return launch_fp8_product(rank, c, work, stream);
  const Adapter adapter = adapter_of(rank, c);
  if (c.op->role == Role::input_gradient) {
    return adapter == Adapter::none ? input_gradient(rank, c, work, stream)
                                    : adapter_input_gradient(rank, c, work, stream);
  }
  if (c.op->role == Role::weight_gradient) {
    return adapter == Adapter::lora_b ? adapter_weight_gradient(rank, c, stream)
                                      : weight_gradient(rank, c, work, stream);
  }
  if (adapter == Adapter::lora_b) return adapter_forward(rank, c, stream);
  forward(rank, c, work, stream);
}

}  // namespace qplan
