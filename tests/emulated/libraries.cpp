// What libraries and Hopper's matrix units compute for the CUDA backend, by the reference
// mathematics: products, attention, products of experts.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "executor/cuda/attention_cudnn.h"
#include "executor/cuda/gemm_cublaslt.h"
#include "executor/math/attention.h"
#include "executor/math/gemm.h"
#include "executor/math/quantize.h"
#include "executor/tensor.h"
#include "kernels/kernels.h"
#include "kernels/sort.h"

namespace qplan {
namespace {

using math::ConstMatrix;
using math::Matrix;

// rows x cols numbers, `stride` between rows, as floats; written back by store().
class Numbers {
 public:
  Numbers(const void* data, DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t stride)
      : first_{static_cast<std::byte*>(const_cast<void*>(data)), dtype, 1, cols},
        stride_(stride),
        values_(static_cast<std::size_t>(rows * cols)) {
    for (std::int64_t r = 0; r < rows; ++r) math::decode(dtype, row(r).span(), matrix().row(r));
  }
  [[nodiscard]] Matrix matrix() {
    return {values_, std::ssize(values_) / first_.cols, first_.cols};
  }
  void clear() { std::ranges::fill(values_, 0.0F); }
  void scale(float by) {
    for (float& value : values_) value *= by;
  }
  void store() {
    for (std::int64_t r = 0; r < matrix().rows; ++r) {
      math::encode(first_.dtype, matrix().row(r), row(r).span());
    }
  }

 private:
  [[nodiscard]] Tensor row(std::int64_t r) const {
    return first_.part(r * stride_, 1, first_.cols);
  }

  Tensor first_;
  std::int64_t stride_;
  std::vector<float> values_;
};

}  // namespace

struct CublasLt::Plan {};
CublasLt::CublasLt() = default;
CublasLt::~CublasLt() = default;
std::size_t CublasLt::Hash::operator()(const ProductShape&) const {
  return 0;
}

void CublasLt::multiply(ProductShape s, const void* a, const void* b, void* c, cudaStream_t,
                        ProductScales scales, const void* bias, float scale) {
  Numbers left(a, s.a, s.a_transposed ? s.k : s.m, s.a_transposed ? s.m : s.k, s.a_stride);
  Numbers right(b, s.b, s.b_transposed ? s.n : s.k, s.b_transposed ? s.k : s.n, s.b_stride);
  if (scales.a != nullptr) left.scale(math::product_scale(s.a, *scales.a, s.b, *scales.b));
  Numbers result(c, s.out, s.m, s.n, s.c_stride);
  const auto op = [](bool transposed) {
    return transposed ? math::Op::transposed : math::Op::plain;
  };
  math::multiply(left.matrix(), op(s.a_transposed), right.matrix(), op(s.b_transposed),
                 result.matrix(), s.accumulate, scale);
  if (bias != nullptr) {
    Numbers row(bias, s.out, 1, s.n, s.n);
    math::add_bias(row.matrix().row(0), result.matrix());
  }
  result.store();
}

OwnedCudnn make_cudnn() {
  return nullptr;
}
struct CudnnAttention::Prepared {};
CudnnAttention::CudnnAttention(double stretch) : stretch_(stretch) {}
CudnnAttention::~CudnnAttention() = default;
std::int64_t CudnnAttention::prepare(const Attention&, AttentionRows) {
  return 0;
}

// Of whole sequences: those of one rank.
void CudnnAttention::run(const Attention& w, const AttentionOperands& o, void*, cudaStream_t,
                         AttentionRows) {
  const std::int64_t q_width = w.heads * w.head_dim, k_width = w.kv_heads * w.head_dim;
  const std::int64_t v_width = w.kv_heads * w.v_head_dim, out_width = w.heads * w.v_head_dim;
  const math::AttentionShape shape{.heads = w.heads,
                                   .kv_heads = w.kv_heads,
                                   .head_dim = w.head_dim,
                                   .v_head_dim = w.v_head_dim,
                                   .scale = stretch_ / std::sqrt(static_cast<double>(w.head_dim)),
                                   .causal = w.causal,
                                   .window = w.window};
  std::vector<std::int64_t> rows(static_cast<std::size_t>(w.q_len)),
      keys(static_cast<std::size_t>(w.kv_len));
  std::iota(rows.begin(), rows.end(), 0);
  std::iota(keys.begin(), keys.end(), 0);
  for (std::int64_t b = 0; b < w.batch; ++b) {
    const auto of_sequence = [b](void* data, std::int64_t len, std::int64_t width) {
      return Numbers(static_cast<std::byte*>(data) + 2 * b * len * width, DType::bf16, len, width,
                     width);
    };
    Numbers q = of_sequence(o.q, w.q_len, q_width), k = of_sequence(o.k, w.kv_len, k_width),
            v = of_sequence(o.v, w.kv_len, v_width), out = of_sequence(o.out, w.q_len, out_width);
    // (heads, rows) on the device, (rows, heads) in the mathematics.
    auto* const sums = static_cast<float*>(o.log_sum_exp) + b * w.heads * w.q_len;
    std::vector<float> lse_values(static_cast<std::size_t>(w.q_len * w.heads));
    const Matrix lse(lse_values, w.q_len, w.heads);
    const auto each_sum = [&](auto visit) {
      for (std::int64_t r = 0; r < w.q_len; ++r) {
        for (std::int64_t h = 0; h < w.heads; ++h) visit(lse.at(r, h), sums[h * w.q_len + r]);
      }
    };
    const math::AttentionInput in{q.matrix(), k.matrix(), v.matrix(), rows, keys};
    if (w.pass == Pass::forward) {
      math::attention(in, shape, out.matrix(), lse);
      out.store();
      each_sum([](float& own, float& device) { device = own; });
      continue;
    }
    each_sum([](float& own, float& device) { own = device; });
    Numbers dout = of_sequence(o.dout, w.q_len, out_width),
            dq = of_sequence(o.dq, w.q_len, q_width), dk = of_sequence(o.dk, w.kv_len, k_width),
            dv = of_sequence(o.dv, w.kv_len, v_width);
    for (Numbers* gradient : {&dq, &dk, &dv}) gradient->clear();
    math::attention_backward(in, shape, out.matrix(), lse, dout.matrix(), dq.matrix(), dk.matrix(),
                             dv.matrix());
    for (Numbers* gradient : {&dq, &dk, &dv}) gradient->store();
  }
}

namespace kernels {
namespace {

// Calls visit(group, its first row, rows) for each group's share that has some.
template <class Visit>
void each_group(const RowGroups& groups, Visit visit) {
  for (int share = 0; share < groups.shares; ++share) {
    const std::int32_t* counts = groups.rows + std::ptrdiff_t{share} * groups.share_stride;
    std::int64_t first = share * groups.share_rows;
    for (int group = 0; group < groups.count; ++group) {
      std::int64_t rows = 0;
      for (int s = 0; s < groups.sources; ++s) rows += counts[s * groups.source_stride + group];
      if (rows > 0) visit(group, first, rows);
      first += rows;
    }
  }
}

}  // namespace

cudaError_t sort_by_key(const SortArrays& to, const SortArrays& from, std::int64_t n, int, void*,
                        std::size_t, cudaStream_t) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::int64_t i) { return from.keys[i]; });
  for (std::size_t i = 0; i < order.size(); ++i) {
    to.keys[i] = from.keys[order[i]];
    to.values[i] = from.values[order[i]];
  }
  return cudaSuccess;
}

bool has_grouped_products() {
  return true;
}

void grouped_forward(bf16* y, const bf16* x, const GroupedWeights& w, const RowGroups& groups,
                     std::int64_t, cudaStream_t) {
  each_group(groups, [&](std::int64_t group, std::int64_t first, std::int64_t rows) {
    CublasLt().multiply({.m = rows,
                         .n = w.out,
                         .k = w.in,
                         .a_stride = w.in,
                         .b_stride = w.in,
                         .c_stride = w.out,
                         .b_transposed = true},
                        x + first * w.in, w.data + group * w.stride, y + first * w.out, nullptr);
  });
}

void grouped_input_gradient(bf16* dx, const bf16* dy, const GroupedWeights& w,
                            const RowGroups& groups, std::int64_t, cudaStream_t) {
  each_group(groups, [&](std::int64_t group, std::int64_t first, std::int64_t rows) {
    CublasLt().multiply(
        {.m = rows, .n = w.in, .k = w.out, .a_stride = w.out, .b_stride = w.in, .c_stride = w.in},
        dy + first * w.out, w.data + group * w.stride, dx + first * w.in, nullptr);
  });
}

void grouped_weight_gradient(const GroupedGradients& dw, const bf16* dy, const bf16* x,
                             const RowGroups& groups, std::int64_t, cudaStream_t) {
  each_group(groups, [&](std::int64_t group, std::int64_t first, std::int64_t rows) {
    CublasLt().multiply({.m = dw.out,
                         .n = dw.in,
                         .k = rows,
                         .a_stride = dw.out,
                         .b_stride = dw.in,
                         .c_stride = dw.in,
                         .a_transposed = true,
                         .accumulate = true,
                         .out = DType::fp32},
                        dy + first * dw.out, x + first * dw.in, dw.data + group * dw.stride,
                        nullptr);
  });
}

}  // namespace kernels
}  // namespace qplan
