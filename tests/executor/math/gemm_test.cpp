#include "executor/math/gemm.h"

#include "tests/executor/math/gradient.h"

using namespace qplan::math;

TEST_CASE("a linear layer multiplies by the transposed weight") {
  const std::vector<float> x{1, 2}, w{1, 0, 0, 1, 3, 4};  // (1, 2) and (3, 2)
  std::vector<float> y(3);
  linear({x, 1, 2}, {w, 3, 2}, {y, 1, 3});
  CHECK(y == std::vector<float>{1, 2, 11});
}

TEST_CASE("products of all four orientations agree") {
  const auto a = random_floats(6, 1), b = random_floats(12, 2);  // (2, 3) and (3, 4)
  std::vector<float> at_(6), bt(12);
  for (int r = 0; r < 2; ++r) {
    for (int c = 0; c < 3; ++c) at_[std::size_t(c * 2 + r)] = a[std::size_t(r * 3 + c)];
  }
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 4; ++c) bt[std::size_t(c * 3 + r)] = b[std::size_t(r * 4 + c)];
  }
  std::vector<float> plain(8);
  multiply({a, 2, 3}, Op::plain, {b, 3, 4}, Op::plain, {plain, 2, 4});
  const auto product = [&](const std::vector<float>& left, bool turned_left,
                           const std::vector<float>& right, bool turned_right) {
    std::vector<float> c(8);
    const ConstMatrix l = turned_left ? ConstMatrix(left, 3, 2) : ConstMatrix(left, 2, 3);
    const ConstMatrix r = turned_right ? ConstMatrix(right, 4, 3) : ConstMatrix(right, 3, 4);
    multiply(l, turned_left ? Op::transposed : Op::plain, r,
             turned_right ? Op::transposed : Op::plain, {c, 2, 4});
    return c;
  };
  for (const auto& c :
       {product(at_, true, b, false), product(a, false, bt, true), product(at_, true, bt, true)}) {
    for (std::size_t i = 0; i < c.size(); ++i) CHECK(c[i] == doctest::Approx(plain[i]));
  }
}

TEST_CASE("a product writes into columns of a wider matrix and leaves the others") {
  const std::vector<float> x{2}, w{3};
  std::vector<float> wide{7, 7, 7, 7};
  const Matrix view(wide, 1, 4);
  linear({x, 1, 1}, {w, 1, 1}, view.columns(2, 1));
  CHECK(wide == std::vector<float>{7, 7, 6, 7});
}

TEST_CASE("the gradients of a linear layer are the slopes of its output") {
  auto x = random_floats(3 * 4, 1), w = random_floats(5 * 4, 2), bias = random_floats(5, 3);
  const auto dy = random_floats(3 * 5, 4);
  const auto loss = [&] {
    std::vector<float> y(15);
    linear({x, 3, 4}, {w, 5, 4}, {y, 3, 5});
    add_bias(bias, {y, 3, 5});
    return dot(y, dy);
  };
  std::vector<float> dx(12), dw(20), dbias(5);
  linear_dgrad({dy, 3, 5}, {w, 5, 4}, {dx, 3, 4});
  linear_wgrad({dy, 3, 5}, {x, 3, 4}, {dw, 5, 4});
  bias_backward({dy, 3, 5}, dbias);
  check_gradient(loss, x, dx);
  check_gradient(loss, w, dw);
  check_gradient(loss, bias, dbias);
}

TEST_CASE("weight gradients accumulate") {
  const std::vector<float> dy{2}, x{3};
  std::vector<float> dw{10};
  linear_wgrad({dy, 1, 1}, {x, 1, 1}, {dw, 1, 1});
  CHECK(dw[0] == 16);
}
