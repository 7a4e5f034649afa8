#include "executor/math/rope.h"

#include "tests/executor/math/gradient.h"

using namespace qplan::math;

namespace {

const std::vector<std::int64_t> kPositions{0, 3};

std::vector<float> turned(std::vector<float> x, const RopeShape& shape) {
  const auto frequencies = rope_frequencies(100, 4);
  rope({x, 2, shape.heads * shape.head_dim}, shape, kPositions, frequencies);
  return x;
}

}  // namespace

TEST_CASE("rope's frequencies fall from 1 by powers of theta") {
  const auto f = rope_frequencies(10000, 8);
  REQUIRE(f.size() == 4);
  CHECK(f[0] == 1);
  CHECK(f[1] == doctest::Approx(0.1));
  CHECK(f[3] == doctest::Approx(0.001));
}

TEST_CASE("rope turns pairs a half apart by position times frequency") {
  const RopeShape shape{.heads = 1, .head_dim = 4};
  const auto y = turned({1, 2, 3, 4, 1, 0, 0, 0}, shape);
  CHECK(y[0] == 1);  // position 0 stays
  CHECK(y[3] == 4);
  CHECK(y[4] == doctest::Approx(std::cos(3.0)));
  CHECK(y[6] == doctest::Approx(std::sin(3.0)));
  CHECK(y[5] == 0);
}

TEST_CASE("neighbouring pairs and a part that stays, as in MLA") {
  const RopeShape shape{.heads = 1, .head_dim = 6, .first = 2, .pairs = RopePairs::neighbours};
  const auto y = turned({1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 1, 0}, shape);
  CHECK(y[6] == 7);
  CHECK(y[7] == 8);
  CHECK(y[8] == doctest::Approx(std::cos(3.0)));
  CHECK(y[9] == doctest::Approx(std::sin(3.0)));
  CHECK(y[10] == doctest::Approx(std::cos(0.3)));
  CHECK(y[11] == doctest::Approx(std::sin(0.3)));
}

TEST_CASE("scores of turned queries and keys depend on their distance only") {
  const RopeShape shape{.heads = 1, .head_dim = 4};
  const auto frequencies = rope_frequencies(100, 4);
  const auto score = [&](std::int64_t query, std::int64_t key) {
    auto q = random_floats(4, 1), k = random_floats(4, 2);
    rope({q, 1, 4}, shape, std::span(&query, 1), frequencies);
    rope({k, 1, 4}, shape, std::span(&key, 1), frequencies);
    return dot(q, k);
  };
  CHECK(score(5, 2) == doctest::Approx(score(105, 102)).epsilon(1e-5));
}

TEST_CASE("rope's gradient is the slope of its output") {
  for (const RopePairs pairs : {RopePairs::halves, RopePairs::neighbours}) {
    const RopeShape shape{.heads = 2, .head_dim = 5, .first = 1, .pairs = pairs};
    auto x = random_floats(20, 1);
    const auto dy = random_floats(20, 2);
    auto dx = dy;
    rope_backward({dx, 2, 10}, shape, kPositions, rope_frequencies(100, 4));
    check_gradient([&] { return dot(turned(x, shape), dy); }, x, dx);
  }
}

TEST_CASE("a linear scaling divides every frequency, llama3's only the low ones") {
  const auto plain = rope_frequencies(10000, 8);
  const auto linear = rope_frequencies(
      10000, 8, qplan::RopeScaling{.kind = qplan::RopeScalingKind::linear, .factor = 4});
  const auto llama3 = rope_frequencies(
      10000, 8,
      qplan::RopeScaling{
          .kind = qplan::RopeScalingKind::llama3, .factor = 4, .original_positions = 64});
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(linear[i] == doctest::Approx(plain[i] / 4));
  CHECK(llama3[0] == plain[0]);                       // turns ten times in 64 positions
  CHECK(llama3[1] >= plain[1] / 4);                   // once: at the edge
  CHECK(llama3[3] == doctest::Approx(plain[3] / 4));  // a hundredth of a turn
}

TEST_CASE(
    "YaRN's magnitude grows with the logarithm of the factor, less where DeepSeek takes it back") {
  qplan::RopeScaling yarn{
      .kind = qplan::RopeScalingKind::yarn, .factor = 40, .original_positions = 4096};
  CHECK(rope_magnitude(yarn) == doctest::Approx(0.1 * std::log(40) + 1));
  CHECK(latent_score_scale(yarn) == 1);
  yarn.mscale = yarn.mscale_all_dim = 1;  // DeepSeek-V3
  CHECK(rope_magnitude(yarn) == 1);
  CHECK(latent_score_scale(yarn) == doctest::Approx(std::pow(0.1 * std::log(40) + 1, 2)));
}
