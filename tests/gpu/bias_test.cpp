// Biases of products, and the gradients of all, against the reference mathematics.

#include <doctest/doctest.h>

#include <numeric>

#include "executor/math/gemm.h"
#include "kernels/kernels.h"
#include "tests/gpu/device_array.h"

using namespace qplan;
using namespace qplan::test;
using math::ConstMatrix;
using math::Matrix;

namespace {

constexpr cudaStream_t kStream = nullptr;

struct Shape {
  std::int64_t rows, cols;
};

}  // namespace

TEST_CASE("a bias is added to rows in fp32") {
  constexpr std::int64_t rows = 77, cols = 40;
  auto y = random_bf16(rows * cols, 1);
  const auto bias = random_bf16(cols, 2);
  const FloatArray dev_y(y);
  const Bf16Array dev_bias(bias);
  kernels::add_bias(dev_y.get(), dev_bias.get(), rows, cols, kStream);
  math::add_bias(bias, Matrix(y, rows, cols));
  CHECK(dev_y.read() == y);
}

TEST_CASE("a bias's gradient is the sum of rows") {
  for (const Shape& s : {Shape{1, 8}, Shape{9, 40}, Shape{517, 264}, Shape{4099, 2880},
                         Shape{20000, 32}, Shape{64, 12288}}) {
    CAPTURE(s.rows);
    CAPTURE(s.cols);
    const auto dy = random_bf16(s.rows * s.cols, 1), before = random_bf16(s.cols, 2);
    auto expected = before;
    math::bias_backward(ConstMatrix(dy, s.rows, s.cols), expected);
    const Bf16Array dev_dy(dy);
    const FloatArray wide_dy(dy), dbias(before), from_wide(before),
        scratch(kernels::kScratchBytes / 4);
    kernels::bias_gradient(dbias.get(), dev_dy.get(), s.rows, s.cols, scratch.get(), kStream);
    kernels::bias_gradient(from_wide.get(), wide_dy.get(), s.rows, s.cols, scratch.get(), kStream);
    check(cudaGetLastError());
    CHECK(distance(dbias.read(), expected) < kFloatRounding);
    CHECK(distance(from_wide.read(), expected) < kFloatRounding);
  }
}

// Two ranks send rows to five experts, some of them none; biases lie among other parameters.
TEST_CASE("each row has its expert's bias, times its own scale") {
  constexpr std::int64_t sources = 2, groups = 5, cols = 520, stride = cols + 56;
  const std::vector<std::int32_t> sent{70, 0, 128, 3, 0, 11, 0, 300, 61, 0};
  const std::int64_t rows = std::accumulate(sent.begin(), sent.end(), std::int64_t{0});
  const std::int64_t room = rows + 40;
  auto padded = [&](std::vector<float> values, std::int64_t width) {
    values.resize(static_cast<std::size_t>(room * width), std::nanf(""));
    return values;
  };
  const auto y = random_bf16(rows * cols, 1), bias = random_bf16(groups * stride, 2),
             scale = random_bf16(rows, 3), before = random_bf16(groups * stride, 4),
             dscale = random_bf16(rows, 5);
  for (const bool scaled : {false, true}) {
    CAPTURE(scaled);
    auto sum = y, dbias = before, expected_dscale = dscale;
    std::int64_t row = 0;
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t own =
          sent[static_cast<std::size_t>(g)] + sent[static_cast<std::size_t>(groups + g)];
      for (const std::int64_t last = row + own; row < last; ++row) {
        const float by = scaled ? scale[static_cast<std::size_t>(row)] : 1;
        double dot = 0;
        for (std::int64_t c = 0; c < cols; ++c) {
          const auto at = static_cast<std::size_t>(row * cols + c);
          const auto b = static_cast<std::size_t>(g * stride + c);
          sum[at] += by * bias[b];
          dbias[b] += by * y[at];
          dot += static_cast<double>(y[at]) * static_cast<double>(bias[b]);
        }
        expected_dscale[static_cast<std::size_t>(row)] += static_cast<float>(dot);
      }
    }
    const Bf16Array dev_y(padded(y, cols)), dev_dy(padded(y, cols)), dev_bias(bias);
    const FloatArray dev_scale(padded(scale, 1)), dev_dbias(before), dev_dscale(padded(dscale, 1));
    const DeviceArray<std::int32_t> dev_sent(ids_as_floats(sent));
    const kernels::RowGroups row_groups{dev_sent.get(), groups, sources, groups};
    const kernels::GroupedWeights biases{dev_bias.get(), cols, 1, stride};
    const float* by = scaled ? dev_scale.get() : nullptr;
    kernels::add_group_bias(dev_y.get(), by, biases, row_groups, room, kStream);
    kernels::group_bias_gradient({dev_dbias.get(), cols, 1, stride}, dev_dy.get(), by, row_groups,
                                 kStream);
    kernels::group_bias_scale_gradient(dev_dscale.get(), dev_dy.get(), biases, row_groups, room,
                                       kStream);
    check(cudaGetLastError());
    const auto front = [](std::vector<float> values, std::size_t size) {
      CHECK(std::isnan(values[size]));  // rows behind the last are left alone
      CHECK(std::isnan(values.back()));
      values.resize(size);
      return values;
    };
    CHECK(distance(front(dev_y.read(), sum.size()), sum) < kBf16Rounding);
    CHECK(distance(dev_dbias.read(), dbias) < kFloatRounding);
    CHECK(distance(front(dev_dscale.read(), dscale.size()), expected_dscale) < kFloatRounding);
  }
}
