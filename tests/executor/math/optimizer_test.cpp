#include "executor/math/optimizer.h"

#include "tests/executor/math/gradient.h"

using namespace qplan::math;

TEST_CASE("the first step of AdamW moves by the learning rate against the gradient's sign") {
  std::vector<float> p{1, 1}, m(2), v(2);
  adamw({.lr = 0.1, .epsilon = 0}, 1, std::vector<float>{5, -0.01F}, 1, p, m, v);
  CHECK(p[0] == doctest::Approx(0.9));
  CHECK(p[1] == doctest::Approx(1.1));
}

// torch.optim.AdamW(lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1), torch 2.15.0: p = 0.5,
// gradients 0.3, -0.2, 0.1.
TEST_CASE("three steps of AdamW are torch's") {
  const AdamWSettings settings{
      .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  std::vector<float> p{0.5}, m(1), v(1);
  const std::vector<float> gradients{0.3F, -0.2F, 0.1F};
  const std::vector<double> expected{0.489500016, 0.487558275, 0.484244794};
  for (std::size_t i = 0; i < 3; ++i) {
    adamw(settings, static_cast<std::int64_t>(i) + 1, std::span(gradients).subspan(i, 1), 1, p, m,
          v);
    CHECK(p[0] == doctest::Approx(expected[i]).epsilon(1e-6));
  }
}

TEST_CASE("a scaled gradient is the same as a smaller one") {
  std::vector<float> p{1}, m(1), v(1), q{1}, n(1), w(1);
  adamw({}, 1, std::vector<float>{4}, 0.25, p, m, v);
  adamw({}, 1, std::vector<float>{1}, 1, q, n, w);
  CHECK(m == n);
  CHECK(v == w);
}

TEST_CASE("gradients are clipped to the limit only when above it") {
  CHECK(sum_of_squares(std::vector<float>{3, 4}) == 25);
  CHECK(clip_scale(5, 1) == doctest::Approx(0.2));
  CHECK(clip_scale(0.5, 1) == 1);
  CHECK(clip_scale(5, 0) == 1);
}
