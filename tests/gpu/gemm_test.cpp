#include "executor/math/gemm.h"

#include <doctest/doctest.h>

#include "executor/cuda/gemm_cublaslt.h"
#include "tests/gpu/device_array.h"

using namespace qplan;
using namespace qplan::test;

TEST_CASE("the three products of a linear layer are the reference's") {
  CublasLt blas;
  constexpr std::int64_t rows = 192, in = 320, out = 448;
  const auto x = random_bf16(rows * in, 1), w = random_bf16(out * in, 2),
             dy = random_bf16(rows * out, 3);
  const Bf16Array dev_x(x), dev_w(w), dev_dy(dy);
  const math::ConstMatrix x_matrix(x, rows, in), w_matrix(w, out, in), dy_matrix(dy, rows, out);

  SUBCASE("forward") {
    const Bf16Array y(rows * out);
    blas.multiply({.m = rows,
                   .n = out,
                   .k = in,
                   .a_stride = in,
                   .b_stride = in,
                   .c_stride = out,
                   .b_transposed = true},
                  dev_x.get(), dev_w.get(), y.get(), nullptr);
    std::vector<float> expected(rows * out);
    math::linear(x_matrix, w_matrix, math::Matrix(expected, rows, out));
    CHECK(distance(y.read(), expected) < kBf16Rounding);
  }
  SUBCASE("forward, with a bias") {
    const auto bias = random_bf16(out, 5), other = random_bf16(out, 6);
    const Bf16Array dev_bias(bias), dev_other(other), y(rows * out);
    const ProductShape shape{.m = rows,
                             .n = out,
                             .k = in,
                             .a_stride = in,
                             .b_stride = in,
                             .c_stride = out,
                             .b_transposed = true};
    // One plan serves both.
    for (const auto& [values, array] : {std::pair{&bias, &dev_bias}, {&other, &dev_other}}) {
      blas.multiply(shape, dev_x.get(), dev_w.get(), y.get(), nullptr, {}, array->get());
      std::vector<float> expected(rows * out);
      math::linear(x_matrix, w_matrix, math::Matrix(expected, rows, out));
      math::add_bias(*values, math::Matrix(expected, rows, out));
      CHECK(distance(y.read(), expected) < kBf16Rounding);
    }
  }
  SUBCASE("input gradient") {
    const Bf16Array dx(rows * in);
    blas.multiply({.m = rows, .n = in, .k = out, .a_stride = out, .b_stride = in, .c_stride = in},
                  dev_dy.get(), dev_w.get(), dx.get(), nullptr);
    std::vector<float> expected(rows * in);
    math::linear_dgrad(dy_matrix, w_matrix, math::Matrix(expected, rows, in));
    CHECK(distance(dx.read(), expected) < kBf16Rounding);
  }
  SUBCASE("weight gradient, added to what is there in fp32") {
    std::vector<float> expected = random_bf16(out * in, 4);
    const FloatArray dw(expected);
    blas.multiply({.m = out,
                   .n = in,
                   .k = rows,
                   .a_stride = out,
                   .b_stride = in,
                   .c_stride = in,
                   .a_transposed = true,
                   .accumulate = true,
                   .out = DType::fp32},
                  dev_dy.get(), dev_x.get(), dw.get(), nullptr);
    math::linear_wgrad(dy_matrix, x_matrix, math::Matrix(expected, out, in));
    CHECK(distance(dw.read(), expected) < kFloatRounding);
  }
}
