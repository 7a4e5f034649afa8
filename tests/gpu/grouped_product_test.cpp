// Products of experts against one reference product a group.

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

// Rows that each source sends to each group: some have none, none divide a tile.
struct Case {
  std::int64_t sources, out, in;
  std::vector<std::int32_t> rows;  // [source][group]
};

void check_products(const Case& c) {
  CAPTURE(c.out);
  CAPTURE(c.in);
  const auto groups = static_cast<std::int64_t>(c.rows.size()) / c.sources;
  const std::int64_t total = std::accumulate(c.rows.begin(), c.rows.end(), std::int64_t{0});
  const std::int64_t room = total + 40, weight = c.out * c.in, stride = weight + 64;
  const auto x = random_bf16(total * c.in, 1), w = random_bf16(groups * stride, 2),
             dy = random_bf16(total * c.out, 3), before = random_bf16(groups * stride, 4);
  std::vector<float> y(x.size() / static_cast<std::size_t>(c.in) * static_cast<std::size_t>(c.out)),
      dx(x.size()), dw = before;
  std::int64_t first = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    std::int64_t rows = 0;
    for (std::int64_t s = 0; s < c.sources; ++s) {
      rows += c.rows[static_cast<std::size_t>(s * groups + g)];
    }
    const auto part = [&](auto& values, std::int64_t begin, std::int64_t count) {
      return std::span(values).subspan(static_cast<std::size_t>(begin),
                                       static_cast<std::size_t>(count));
    };
    const ConstMatrix x_rows(part(x, first * c.in, rows * c.in), rows, c.in);
    const ConstMatrix dy_rows(part(dy, first * c.out, rows * c.out), rows, c.out);
    const ConstMatrix matrix(part(w, g * stride, weight), c.out, c.in);
    math::linear(x_rows, matrix, Matrix(part(y, first * c.out, rows * c.out), rows, c.out));
    math::linear_dgrad(dy_rows, matrix, Matrix(part(dx, first * c.in, rows * c.in), rows, c.in));
    math::linear_wgrad(dy_rows, x_rows, Matrix(part(dw, g * stride, weight), c.out, c.in));
    first += rows;
  }

  // What lies behind the rows is no number: it may not spread.
  const auto padded = [&](std::vector<float> values, std::int64_t cols) {
    values.resize(static_cast<std::size_t>(room * cols), std::nanf(""));
    return values;
  };
  const Bf16Array dev_x(padded(x, c.in)), dev_dy(padded(dy, c.out)), dev_w(w), dev_y(room * c.out),
      dev_dx(room * c.in);
  const FloatArray dev_dw(before);
  const DeviceArray<std::int32_t> dev_rows(std::vector<float>(c.rows.begin(), c.rows.end()));
  const kernels::RowGroups row_groups{dev_rows.get(), static_cast<int>(groups),
                                      static_cast<int>(c.sources), static_cast<int>(groups)};
  const kernels::GroupedWeights weights{dev_w.get(), c.out, c.in, stride};
  kernels::grouped_forward(dev_y.get(), dev_x.get(), weights, row_groups, room, nullptr);
  kernels::grouped_input_gradient(dev_dx.get(), dev_dy.get(), weights, row_groups, room, nullptr);
  kernels::grouped_weight_gradient({dev_dw.get(), c.out, c.in, stride}, dev_dy.get(), dev_x.get(),
                                   row_groups, room, nullptr);
  check(cudaGetLastError());
  const auto front = [](std::vector<float> values, std::size_t size) {
    values.resize(size);
    return values;
  };
  CHECK(distance(front(dev_y.read(), y.size()), y) < kBf16Rounding);
  CHECK(distance(front(dev_dx.read(), dx.size()), dx) < kBf16Rounding);
  CHECK(distance(dev_dw.read(), dw) < kFloatRounding);
  // Rows behind the last are left alone.
  const auto tail = dev_y.read();
  CHECK(std::isnan(tail[y.size()]));
  CHECK(std::isnan(tail.back()));
}

}  // namespace

TEST_CASE("grouped products are one product for each expert") {
  if (!kernels::has_grouped_products()) {
    MESSAGE("left out: this GPU is not of Hopper's generation");
    return;
  }
  check_products({1, 320, 192, {200, 0, 1, 63, 0, 129, 64, 0}});
  check_products({2, 768, 256, {70, 0, 128, 3, 0, 0, 300, 61}});
  check_products({1, 64, 72, {5, 17, 300}});
  check_products({1, 520, 136, {0, 0, 0, 40}});
  // More tiles than an H200 has multiprocessors.
  check_products({1, 1536, 128, {10, 0, 2900, 130, 0, 400}});
}

TEST_CASE("grouped products are the same however many were launched before") {
  if (!kernels::has_grouped_products()) {
    MESSAGE("left out: this GPU is not of Hopper's generation");
    return;
  }
  constexpr std::int64_t rows = 6000, out = 512, in = 64;
  const Bf16Array x(random_bf16(rows * in, 1)), w(random_bf16(2 * out * in, 2)), y(rows * out);
  const DeviceArray<std::int32_t> sizes(std::vector<float>{5000, 1000});
  std::vector<float> first;
  for (int launch = 0; launch < 130; ++launch) {  // more than draw their tiles at once
    check(cudaMemset(y.get(), 0xFF, static_cast<std::size_t>(rows * out) * sizeof(kernels::bf16)));
    kernels::grouped_forward(y.get(), x.get(), {w.get(), out, in, out * in}, {sizes.get(), 2}, rows,
                             nullptr);
    const std::vector<float> now = y.read();
    if (launch == 0) first = now;
    CHECK(now == first);
  }
}
