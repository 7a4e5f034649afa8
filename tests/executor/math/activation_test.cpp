#include "executor/math/activation.h"

#include "tests/executor/math/gradient.h"

using namespace qplan::math;

namespace {

float activated(Activation kind, std::vector<float> x) {
  std::vector<float> y(1);
  activate(kind, {x, 1, std::ssize(x)}, {}, {y, 1, 1});
  return y[0];
}

}  // namespace

TEST_CASE("activations have their textbook values") {
  CHECK(activated(Activation::swiglu, {0, 5}) == 0);
  CHECK(activated(Activation::swiglu, {1, 2}) == doctest::Approx(2 / (1 + std::exp(-1.0))));
  CHECK(activated(Activation::gelu, {1}) == doctest::Approx(0.841344746));       // Phi(1)
  CHECK(activated(Activation::gelu_tanh, {1}) == doctest::Approx(0.841191990));  // torch
  CHECK(activated(Activation::relu2, {3}) == 9);
  CHECK(activated(Activation::relu2, {-3}) == 0);
}

TEST_CASE("gpt-oss clamps the gate from above and the other half on both sides") {
  const auto f = [](float gate, float up) {
    return activated(Activation::swiglu_clamped, {gate, up});
  };
  CHECK(f(9, 9) == f(7, 7));
  CHECK(f(1, -9) == f(1, -7));
  CHECK(f(-9, 1) != f(-7, 1));
  CHECK(f(1, 2) == doctest::Approx(3 / (1 + std::exp(-1.702))));
}

TEST_CASE("activations' gradients are the slopes of their outputs") {
  for (const Activation kind : {Activation::swiglu, Activation::swiglu_clamped, Activation::gelu,
                                Activation::gelu_tanh, Activation::relu2}) {
    const std::int64_t width = is_gated(kind) ? 8 : 4;
    auto x = random_floats(3 * width, 1), scale = random_floats(3, 2);
    // Differences do not straddle relu's corner; beyond the clamp the slope is 0.
    for (float& v : x) v += v < 0 ? -0.1F : 0.1F;
    if (kind == Activation::swiglu_clamped) x[0] = 8, x[5] = -8;
    const auto dy = random_floats(12, 3);
    const auto loss = [&] {
      std::vector<float> y(12);
      activate(kind, {x, 3, width}, scale, {y, 3, 4});
      return dot(y, dy);
    };
    std::vector<float> dx(x.size()), dscale(3);
    activate_backward(kind, {x, 3, width}, scale, {dy, 3, 4}, {dx, 3, width}, dscale);
    check_gradient(loss, x, dx);
    check_gradient(loss, scale, dscale);
  }
}
