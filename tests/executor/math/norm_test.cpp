#include "executor/math/norm.h"

#include "tests/executor/math/gradient.h"

using namespace qplan::math;

namespace {

ConstMatrix rows_of(const std::vector<float>& x) {
  return {x, 3, 6};
}
Matrix rows_of(std::vector<float>& x) {
  return {x, 3, 6};
}

}  // namespace

TEST_CASE("RMSNorm of (3, 4) divides by the root of 12.5") {
  const std::vector<float> x{3, 4}, weight{1, 2};
  std::vector<float> y(2);
  rms_norm({x, 1, 2}, weight, {.epsilon = 0}, {y, 1, 2});
  CHECK(y[0] == doctest::Approx(3 / std::sqrt(12.5)));
  CHECK(y[1] == doctest::Approx(8 / std::sqrt(12.5)));
}

TEST_CASE("LayerNorm of (1, 3) is (-1, 1), scaled and shifted") {
  const std::vector<float> x{1, 3}, weight{2, 2}, bias{0.5, 0.25};
  std::vector<float> y(2);
  layer_norm({x, 1, 2}, weight, bias, {.epsilon = 0}, {y, 1, 2});
  CHECK(y[0] == doctest::Approx(-1.5));
  CHECK(y[1] == doctest::Approx(2.25));
}

TEST_CASE("a weight around zero scales by one more") {
  const std::vector<float> x{1, 3}, zero{0, 0};
  std::vector<float> y(2);
  layer_norm({x, 1, 2}, zero, zero, {.epsilon = 0, .weight_around_zero = true}, {y, 1, 2});
  CHECK(y[0] == doctest::Approx(-1));
}

TEST_CASE("the gradients of norms are the slopes of their outputs") {
  for (const bool around_zero : {false, true}) {
    const NormShape shape{.epsilon = 1e-3, .weight_around_zero = around_zero};
    auto x = random_floats(18, 1), weight = random_floats(6, 2), bias = random_floats(6, 3);
    const auto dy = random_floats(18, 4);
    const auto rms = [&] {
      std::vector<float> y(18);
      rms_norm(rows_of(x), weight, shape, rows_of(y));
      return dot(y, dy);
    };
    std::vector<float> dx(18), dweight(6), dbias(6);
    rms_norm_backward(rows_of(x), weight, shape, rows_of(dy), rows_of(dx), dweight);
    check_gradient(rms, x, dx);
    check_gradient(rms, weight, dweight);

    const auto layer = [&] {
      std::vector<float> y(18);
      layer_norm(rows_of(x), weight, bias, shape, rows_of(y));
      return dot(y, dy);
    };
    dweight.assign(6, 0);
    layer_norm_backward(rows_of(x), weight, shape, rows_of(dy), rows_of(dx), dweight, dbias);
    check_gradient(layer, x, dx);
    check_gradient(layer, weight, dweight);
    check_gradient(layer, bias, dbias);
  }
}
