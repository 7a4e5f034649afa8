// fp8 on a GPU against the reference: scales, casts and transposed copies to the bit, products to
// the accuracy of their sums.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "executor/cuda/gemm_cublaslt.h"
#include "executor/math/gemm.h"
#include "executor/math/quantize.h"
#include "kernels/kernels.h"
#include "tests/gpu/device_array.h"

using namespace qplan;
using namespace qplan::test;

namespace {

using ByteArray = DeviceArray<std::uint8_t>;

constexpr std::array kFormats{std::pair{DType::fp8, kernels::Fp8::e4m3},
                              std::pair{DType::fp8_e5m2, kernels::Fp8::e5m2}};

// Numbers of a format as floats, and as their codes.
struct Quantized {
  float scale = 0;
  std::vector<float> values, codes;
};

Quantized quantized(std::vector<float> x, DType format) {
  Quantized q;
  q.scale = math::quantization_scale(x);
  math::scale_to(format, q.scale, x);
  std::vector<std::byte> bytes(x.size());
  math::encode(format, x, bytes);
  q.values.resize(x.size());
  math::decode(format, bytes, q.values);
  for (const std::byte b : bytes) q.codes.push_back(static_cast<float>(b));
  return q;
}

std::vector<float> turned(std::vector<float> x, std::int64_t rows, std::int64_t cols) {
  std::vector<float> y(x.size());
  math::transpose(math::Matrix(x, rows, cols), math::Matrix(y, cols, rows));
  return y;
}

}  // namespace

TEST_CASE("scales, casts to fp8 and transposed copies are the reference's, to the bit") {
  // Whole tiles and parts of them.
  constexpr std::int64_t rows = 208, cols = 400;
  for (const float deviation : {1e-6F, 0.02F, 300.0F}) {
    CAPTURE(deviation);
    std::vector<float> x = random_bf16(rows * cols, 1, deviation);
    for (std::size_t i = 0; i < x.size(); i += 7) x[i] *= 0x1p-12F;  // below the formats' least
    x[5] = 0;
    x[17] = -0.0F;
    const Bf16Array dev_x(x);
    for (const auto& [format, own] : kFormats) {
      CAPTURE(std::string_view(to_word(format)));
      const Quantized expected = quantized(x, format);
      const FloatArray scale(1);
      kernels::quantization_scale(scale.get(), dev_x.get(), dev_x.size(), nullptr);
      CHECK(scale.read()[0] == expected.scale);
      const ByteArray y(dev_x.size()), y_turned(dev_x.size()), copy(dev_x.size());
      kernels::quantize(y.get(), dev_x.get(), scale.get(), own, dev_x.size(), nullptr);
      CHECK(y.read() == expected.codes);
      kernels::quantize_transposed(y_turned.get(), dev_x.get(), scale.get(), own, rows, cols,
                                   nullptr);
      CHECK(y_turned.read() == turned(expected.codes, rows, cols));
      kernels::transpose_bytes(copy.get(), y.get(), rows, cols, nullptr);
      CHECK(copy.read() == turned(expected.codes, rows, cols));
    }
  }
}

// Tensor cores keep about 14 bits of a sum of fp8 products.
TEST_CASE("fp8 products are the reference's of the same numbers") {
  constexpr std::int64_t m = 192, n = 448, k = 1024;
  constexpr double kSums = 1e-3;
  CublasLt blas;
  const Quantized b = quantized(random_bf16(n * k, 2, 0.03F), DType::fp8);
  const ByteArray dev_b(b.codes);
  const FloatArray b_scale(std::vector<float>{b.scale});
  for (const auto& [format, own] : kFormats) {
    CAPTURE(std::string_view(to_word(format)));
    const Quantized a = quantized(random_bf16(m * k, 1, 5), format);
    const ByteArray dev_a(a.codes);
    const FloatArray a_scale(std::vector<float>{a.scale});
    std::vector<float> product(m * n);
    math::multiply(math::ConstMatrix(a.values, m, k), math::Op::plain,
                   math::ConstMatrix(b.values, n, k), math::Op::transposed,
                   math::Matrix(product, m, n));
    const float scale = math::product_scale(format, a.scale, DType::fp8, b.scale);
    for (float& x : product) x *= scale;
    ProductShape shape{.m = m,
                       .n = n,
                       .k = k,
                       .a_stride = k,
                       .b_stride = k,
                       .c_stride = n,
                       .b_transposed = true,
                       .a = format,
                       .b = DType::fp8};
    for (const bool fast : {false, true}) {
      shape.fast_accumulation = fast;
      const Bf16Array c(m * n);
      blas.multiply(shape, dev_a.get(), dev_b.get(), c.get(), nullptr,
                    {a_scale.get(), b_scale.get()});
      CHECK(distance(c.read(), product) < kBf16Rounding + kSums);
    }
    shape.fast_accumulation = false;
    shape.accumulate = true;
    shape.out = DType::fp32;
    std::vector<float> sum = random_bf16(m * n, 4);
    const FloatArray c(sum);
    blas.multiply(shape, dev_a.get(), dev_b.get(), c.get(), nullptr,
                  {a_scale.get(), b_scale.get()});
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += product[i];
    CHECK(distance(c.read(), sum) < kSums);
  }
}
