// Products of experts against one reference product a group.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "executor/math/gemm.h"
#include "kernels/kernels.h"
#include "tests/gpu/device_array.h"

using namespace qplan;
using namespace qplan::test;
using math::ConstMatrix;
using math::Matrix;

namespace {

// Rows that each source sends to each group, of every share: some have none, none divide a tile.
struct Case {
  std::int64_t sources, out, in;
  std::vector<std::int32_t> rows;  // [share][source][group]
  std::int64_t shares = 1;
};

auto part(auto& values, std::int64_t begin, std::int64_t count) {
  return std::span(values).subspan(static_cast<std::size_t>(begin),
                                   static_cast<std::size_t>(count));
}

// `values`, with what is no number in all rows of which `used` says no.
std::vector<float> padded(std::vector<float> values, const std::vector<bool>& used) {
  const std::size_t cols = values.size() / used.size();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!used[i / cols]) values[i] = std::nanf("");
  }
  return values;
}

// Of rows that are used.
double row_distance(const std::vector<float>& found, const std::vector<float>& expected,
                    const std::vector<bool>& used) {
  const std::size_t cols = found.size() / used.size();
  std::vector<float> a, b;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!used[i / cols]) continue;
    a.push_back(found[i]);
    b.push_back(expected[i]);
  }
  return distance(a, b);
}

void check_products(const Case& c) {
  CAPTURE(c.out);
  CAPTURE(c.in);
  CAPTURE(c.shares);
  const auto counts = std::ssize(c.rows) / c.shares, groups = counts / c.sources;
  const auto of_share = [&](std::int64_t share) { return part(c.rows, share * counts, counts); };
  std::int64_t most = 0;
  for (std::int64_t share = 0; share < c.shares; ++share) {
    const auto rows = of_share(share);
    most = std::max(most, std::accumulate(rows.begin(), rows.end(), std::int64_t{0}));
  }
  const std::int64_t room = most + 40, all = c.shares * room, weight = c.out * c.in,
                     stride = weight + 64;
  const auto x = random_bf16(all * c.in, 1), w = random_bf16(groups * stride, 2),
             dy = random_bf16(all * c.out, 3), before = random_bf16(groups * stride, 4);
  std::vector<float> y(dy.size()), dx(x.size()), dw = before;
  std::vector<bool> used(static_cast<std::size_t>(all));
  for (std::int64_t share = 0; share < c.shares; ++share) {
    std::int64_t first = share * room;
    for (std::int64_t g = 0; g < groups; ++g) {
      std::int64_t rows = 0;
      for (std::int64_t s = 0; s < c.sources; ++s) {
        rows += of_share(share)[static_cast<std::size_t>(s * groups + g)];
      }
      const ConstMatrix x_rows(part(x, first * c.in, rows * c.in), rows, c.in);
      const ConstMatrix dy_rows(part(dy, first * c.out, rows * c.out), rows, c.out);
      const ConstMatrix matrix(part(w, g * stride, weight), c.out, c.in);
      math::linear(x_rows, matrix, Matrix(part(y, first * c.out, rows * c.out), rows, c.out));
      math::linear_dgrad(dy_rows, matrix, Matrix(part(dx, first * c.in, rows * c.in), rows, c.in));
      math::linear_wgrad(dy_rows, x_rows, Matrix(part(dw, g * stride, weight), c.out, c.in));
      for (std::int64_t r = 0; r < rows; ++r) used[static_cast<std::size_t>(first + r)] = true;
      first += rows;
    }
  }

  // What lies behind the rows is no number: it may not spread.
  const Bf16Array dev_x(padded(x, used)), dev_dy(padded(dy, used)), dev_w(w),
      dev_y(padded(dy, std::vector<bool>(used.size()))), dev_dx(all * c.in);
  const FloatArray dev_dw(before);
  const DeviceArray<std::int32_t> dev_rows(std::vector<float>(c.rows.begin(), c.rows.end()));
  const kernels::RowGroups row_groups{dev_rows.get(),
                                      static_cast<int>(groups),
                                      static_cast<int>(c.sources),
                                      static_cast<int>(groups),
                                      static_cast<int>(c.shares),
                                      static_cast<int>(counts),
                                      room};
  const kernels::GroupedWeights weights{dev_w.get(), c.out, c.in, stride};
  kernels::grouped_forward(dev_y.get(), dev_x.get(), weights, row_groups, all, nullptr);
  kernels::grouped_input_gradient(dev_dx.get(), dev_dy.get(), weights, row_groups, all, nullptr);
  kernels::grouped_weight_gradient({dev_dw.get(), c.out, c.in, stride}, dev_dy.get(), dev_x.get(),
                                   row_groups, all, nullptr);
  check(cudaGetLastError());
  const auto found = dev_y.read();
  CHECK(row_distance(found, y, used) < kBf16Rounding);
  CHECK(row_distance(dev_dx.read(), dx, used) < kBf16Rounding);
  CHECK(distance(dev_dw.read(), dw) < kFloatRounding);
  // Rows behind a share's last are left alone.
  for (std::size_t r = 0; r < used.size(); ++r) {
    if (!used[r]) CHECK(std::isnan(found[r * static_cast<std::size_t>(c.out)]));
  }
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
  // More tiles than an H200 has multiprocessors, in more than one band.
  check_products({1, 1536, 128, {10, 0, 2900, 130, 0, 400}});
  check_products({1, 4480, 640, {200, 5000}});
}

TEST_CASE("rows of several shares are one product for each expert") {
  if (!kernels::has_grouped_products()) {
    MESSAGE("left out: this GPU is not of Hopper's generation");
    return;
  }
  check_products({1, 320, 192, {200, 0, 1, 63, 0, 129, 64, 0}, 2});
  check_products({2, 768, 256, {70, 0, 128, 3, 0, 0, 300, 61}, 2});
  check_products({1, 136, 72, {5, 17, 300, 0, 129, 64, 65, 1, 0}, 3});
  // As many as there may be.
  std::vector<std::int32_t> many(kernels::kMostRowGroups);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::int32_t>(i * 7 % 5);
  check_products({1, 64, 64, many, 2});
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
