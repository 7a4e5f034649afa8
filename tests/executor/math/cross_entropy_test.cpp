#include "executor/math/cross_entropy.h"

#include <algorithm>

#include "tests/executor/math/gradient.h"

using namespace qplan::math;

namespace {

const std::vector<std::int32_t> kTargets{0, 4};

// Losses of logits (2, 6) of 5 words and one padded column, on `ranks` vocabulary shards.
struct Split {
  std::int64_t ranks, width;
  std::vector<float> maxima{-1e30F, -1e30F}, sums{0, 0}, target{0, 0};

  Split(const std::vector<float>& logits, std::int64_t count) : ranks(count), width(6 / count) {
    std::vector<float> part(2), part2(2);
    for (std::int64_t r = 0; r < ranks; ++r) {
      logits_max(shard(logits, r), where(r), part);
      for (std::size_t t = 0; t < 2; ++t) maxima[t] = std::max(maxima[t], part[t]);
    }
    for (std::int64_t r = 0; r < ranks; ++r) {
      logits_sums(shard(logits, r), where(r), kTargets, maxima, part, part2);
      for (std::size_t t = 0; t < 2; ++t) sums[t] += part[t], target[t] += part2[t];
    }
  }
  [[nodiscard]] ConstMatrix shard(const std::vector<float>& logits, std::int64_t r) const {
    return ConstMatrix(logits, 2, 6).columns(r * width, width);
  }
  [[nodiscard]] VocabularyShard where(std::int64_t r) const { return {r * width, 5}; }
  [[nodiscard]] std::vector<float> losses() const {
    std::vector<float> result(2);
    cross_entropy(sums, target, result);
    return result;
  }
};

}  // namespace

TEST_CASE("equal logits cost the logarithm of the words, padding left out") {
  const std::vector<float> logits(12, 3.0F);
  CHECK(Split(logits, 1).losses()[0] == doctest::Approx(std::log(5)));
}

TEST_CASE("shards of the vocabulary give the whole vocabulary's losses and gradients") {
  auto logits = random_floats(12, 1, 3);
  logits[5] = logits[11] = 50;  // padding that would win
  for (const std::int64_t ranks : {1, 2, 3, 6}) {
    CAPTURE(ranks);
    const Split split(logits, ranks);
    const auto whole = Split(logits, 1).losses(), parts = split.losses();
    for (std::size_t t = 0; t < 2; ++t) CHECK(parts[t] == doctest::Approx(whole[t]));
    std::vector<float> dlogits(12);
    const Matrix all(dlogits, 2, 6);
    for (std::int64_t r = 0; r < ranks; ++r) {
      cross_entropy_backward(split.shard(logits, r), split.where(r), kTargets, split.maxima,
                             split.sums, 0.5, all.columns(r * split.width, split.width));
    }
    const auto mean = [&] {
      const auto losses = Split(logits, ranks).losses();
      return 0.5 * (static_cast<double>(losses[0]) + losses[1]);
    };
    check_gradient(mean, logits, dlogits);
    CHECK(dlogits[5] == 0);
  }
}
