#include "executor/math/optimizer.h"

#include <cmath>
#include <random>

#include "tests/executor/math/gradient.h"

using namespace qplan::math;

namespace {

std::vector<float> random_numbers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& x : numbers) x = normal(random);
  return numbers;
}

std::vector<float> transposed(const std::vector<float>& x, std::int64_t rows, std::int64_t cols) {
  std::vector<float> y(x.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) y[at(c * rows + r)] = x[at(r * cols + c)];
  }
  return y;
}

}  // namespace

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

// torch.optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.1): buf = 0.9 buf + (g + 0.1 p).
TEST_CASE("SGD adds gradients up in its momentum, weight decay with them") {
  std::vector<float> p{0.5}, m(1);
  const SgdSettings settings{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1};
  double expected = 0.5, momentum = 0;
  for (const float g : {0.3F, -0.2F, 0.1F}) {
    sgd(settings, std::vector<float>{2 * g}, 0.5, p, m);
    momentum = 0.9 * momentum + g + 0.1 * expected;
    expected -= 0.1 * momentum;
    CHECK(p[0] == doctest::Approx(expected).epsilon(1e-6));
    CHECK(m[0] == doctest::Approx(momentum).epsilon(1e-6));
  }
}

TEST_CASE("Newton-Schulz makes rows, or columns, nearly orthonormal, whatever the shape") {
  for (const auto& [rows, cols] : {std::pair{4, 4}, {3, 8}, {8, 3}, {1, 6}, {16, 16}}) {
    CAPTURE(rows);
    CAPTURE(cols);
    std::vector<float> x = random_numbers(static_cast<std::size_t>(rows * cols), 3);
    const std::vector<float> before = x;
    orthogonalize({std::span(x), rows, cols});
    // The trace of X X^T is the sum of squared singular values: each between 0.4 and 1.6 squared,
    // but for tiny ones of a square matrix.
    const double squares = sum_of_squares(x);
    const int rank = std::min(rows, cols);
    CHECK(squares > 0.3 * rank);
    CHECK(squares < 1.6 * rank);
    // As the polar factor does, it leans the way the matrix did.
    double inner = 0;
    for (std::size_t i = 0; i < x.size(); ++i) inner += static_cast<double>(x[i]) * before[i];
    CHECK(inner > 0);
    // A transpose of the transpose; a multiple is as good as the matrix itself.
    std::vector<float> y = transposed(before, rows, cols);
    for (float& v : y) v *= 7;
    orthogonalize({std::span(y), cols, rows});
    const std::vector<float> back = transposed(y, cols, rows);
    for (std::size_t i = 0; i < x.size(); ++i)
      CHECK(back[i] == doctest::Approx(x[i]).epsilon(1e-4));
  }
}

TEST_CASE("Muon's step does not hang on how large the gradient is, and is as large as Adam's") {
  constexpr std::int64_t kRows = 24, kCols = 40;
  const std::vector<float> gradient = random_numbers(kRows * kCols, 5);
  std::vector<float> small(gradient.size()), large(gradient.size());
  for (auto* p : {&small, &large}) {
    std::vector<float> m(gradient.size());
    muon({.lr = 1}, {std::span(gradient), kRows, kCols}, p == &small ? 1e-3 : 10,
         {std::span(*p), kRows, kCols}, {std::span(m), kRows, kCols});
  }
  for (std::size_t i = 0; i < small.size(); ++i) {
    CHECK(small[i] == doctest::Approx(large[i]).epsilon(1e-3));
  }
  // arXiv 2502.16982: a mean square of about 0.2 squared.
  const double rms = std::sqrt(sum_of_squares(small) / static_cast<double>(small.size()));
  CHECK(rms > 0.1);
  CHECK(rms < 0.3);
}

TEST_CASE("of squares that are a product of rows and columns Adafactor's first step is the sign") {
  constexpr std::int64_t kRows = 3, kCols = 5;
  std::vector<float> gradient(kRows * kCols), p(gradient.size()), means(kRows + kCols);
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kCols; ++c) {
      gradient[at(r * kCols + c)] =
          static_cast<float>((r + 1) * (c + 2)) * ((r + c) % 2 == 0 ? 1.0F : -1.0F);
    }
  }
  adafactor({.lr = 0.1}, 1, {std::span(std::as_const(gradient)), kRows, kCols}, 1,
            {std::span(p), kRows, kCols}, means, false);
  for (std::size_t i = 0; i < p.size(); ++i) {
    CHECK(p[i] == doctest::Approx(gradient[i] > 0 ? -0.1 : 0.1).epsilon(1e-5));
  }
}

TEST_CASE("Adafactor's means forget as the step's number says, and its step is clipped to 1") {
  std::vector<float> p{0}, mean(1);
  double expected = 0, v = 0;
  for (int step = 1; step <= 4; ++step) {
    const float g = step == 3 ? 10.0F : 1.0F;
    const std::vector<float> gradient{g};
    adafactor({.lr = 0.1}, step, {std::span(gradient), 1, 1}, 1, {std::span(p), 1, 1}, mean, true);
    const double decay = 1 - std::pow(step, -0.8);
    v = decay * v + (1 - decay) * g * g;
    const double u = g / std::sqrt(v);
    expected -= 0.1 * u / std::max(1.0, std::abs(u));
    CHECK(mean[0] == doctest::Approx(v).epsilon(1e-5));
    CHECK(p[0] == doctest::Approx(expected).epsilon(1e-5));
  }
}

namespace {

const std::vector<float> kStart{0.5F, -0.25F, 0.125F, 0.75F, 0.3F, -0.6F};
const std::vector<std::vector<float>> kGradients{{0.3F, -0.2F, 0.1F, 0.05F, 0.4F, -0.15F},
                                                 {-0.1F, 0.25F, 0.2F, 0.3F, -0.35F, 0.05F},
                                                 {0.15F, 0.1F, -0.3F, -0.2F, 0.02F, 0.45F}};

void check_close(const std::vector<float>& values, const std::vector<double>& expected,
                 double within) {
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(values[i] - expected[i]) < within);
  }
}

}  // namespace

// torch.optim.SGD(lr=0.01, momentum=0.9, weight_decay=0.1) of torch 2.15.0.
TEST_CASE("three steps of SGD are torch's") {
  std::vector<float> p = kStart, m(p.size());
  for (const auto& g : kGradients) {
    sgd({.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1}, g, 1, p, m);
  }
  check_close(p, {0.48947778, -0.24893379, 0.12079515, 0.74074596, 0.29394016, -0.59802711}, 1e-6);
}

// Adafactor(lr=0.01, scale_parameter=False, relative_step=False, weight_decay=0.1) of transformers
// 5.23.0.
TEST_CASE("three steps of Adafactor are transformers'") {
  std::vector<float> p = kStart, means(2 + 3);
  for (std::size_t step = 0; step < kGradients.size(); ++step) {
    adafactor({.lr = 0.01, .weight_decay = 0.1}, static_cast<std::int64_t>(step) + 1,
              {std::span(kGradients[step]), 2, 3}, 1, {std::span(p), 2, 3}, means, false);
  }
  check_close(p, {0.47993276, -0.25627521, 0.11354911, 0.74255884, 0.2963821, -0.60524309}, 1e-6);
}

// torch.optim.Muon(lr=0.01, momentum=0.95, nesterov=True, weight_decay=0.1,
// adjust_lr_fn='match_rms_adamw') of torch 2.15.0, whose iterations are in bf16: a step of 3e-3 is
// off by some percent.
TEST_CASE("three steps of Muon are torch's, to bf16's accuracy") {
  std::vector<float> p = kStart, m(p.size());
  for (const auto& g : kGradients) {
    muon({.lr = 0.01, .momentum = 0.95, .weight_decay = 0.1}, {std::span(g), 2, 3}, 1,
         {std::span(p), 2, 3}, {std::span(m), 2, 3});
  }
  check_close(p, {0.49269098, -0.25163281, 0.12190849, 0.7427572, 0.29738569, -0.5995909}, 2e-4);
}
