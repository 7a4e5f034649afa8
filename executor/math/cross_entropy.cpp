#include "executor/math/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace qplan::math {
namespace {

// Columns that are words.
std::int64_t words(ConstMatrix logits, const VocabularyShard& shard) {
  return std::clamp<std::int64_t>(shard.vocabulary - shard.first, 0, logits.cols);
}

}  // namespace

void logits_max(ConstMatrix logits, const VocabularyShard& shard, Floats maxima) {
  for (std::int64_t t = 0; t < logits.rows; ++t) {
    float largest = -std::numeric_limits<float>::infinity();
    for (std::int64_t c = 0; c < words(logits, shard); ++c) {
      largest = std::max(largest, logits.at(t, c));
    }
    maxima[at(t)] = largest;
  }
}

void logits_sums(ConstMatrix logits, const VocabularyShard& shard,
                 std::span<const std::int32_t> targets, ConstFloats maxima, Floats sums,
                 Floats target_logits) {
  for (std::int64_t t = 0; t < logits.rows; ++t) {
    const double top = maxima[at(t)];
    double sum = 0;
    for (std::int64_t c = 0; c < words(logits, shard); ++c) sum += std::exp(logits.at(t, c) - top);
    sums[at(t)] = static_cast<float>(sum);
    const std::int64_t mine = targets[at(t)] - shard.first;
    const bool here = mine >= 0 && mine < words(logits, shard);
    target_logits[at(t)] = here ? static_cast<float>(logits.at(t, mine) - top) : 0.0F;
  }
}

void cross_entropy(ConstFloats sums, ConstFloats target_logits, Floats losses) {
  for (std::size_t t = 0; t < losses.size(); ++t) {
    losses[t] = static_cast<float>(std::log(static_cast<double>(sums[t])) - target_logits[t]);
  }
}

void cross_entropy_backward(ConstMatrix logits, const VocabularyShard& shard,
                            std::span<const std::int32_t> targets, ConstFloats maxima,
                            ConstFloats sums, double scale, Matrix dlogits) {
  for (std::int64_t t = 0; t < logits.rows; ++t) {
    const double top = maxima[at(t)], sum = sums[at(t)];
    for (std::int64_t c = 0; c < logits.cols; ++c) {
      const bool word = c < words(logits, shard);
      const double p = word ? std::exp(logits.at(t, c) - top) / sum : 0;
      const bool target = word && shard.first + c == targets[at(t)];
      dlogits.at(t, c) = static_cast<float>(scale * (p - (target ? 1 : 0)));
    }
  }
}

}  // namespace qplan::math
