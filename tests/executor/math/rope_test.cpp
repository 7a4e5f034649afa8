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
