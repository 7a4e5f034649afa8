#include "executor/math/rope.h"

#include <cmath>

namespace qplan::math {
namespace {

void turn(Matrix x, const RopeShape& shape, std::span<const std::int64_t> positions,
          std::span<const double> frequencies, double direction) {
  const std::int64_t half = std::ssize(frequencies);
  const bool halves = shape.pairs == RopePairs::halves;
  QPLAN_CHECK(x.rows == std::ssize(positions) && x.cols == shape.heads * shape.head_dim &&
                  shape.first + 2 * half <= shape.head_dim,
              "rope turns whole heads at one position a row");
  for (std::int64_t r = 0; r < x.rows; ++r) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = direction * static_cast<double>(positions[at(r)]) * frequencies[at(i)];
      const double cosine = std::cos(angle), sine = std::sin(angle);
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        const std::int64_t begin = head * shape.head_dim + shape.first;
        float& a = x.at(r, begin + (halves ? i : 2 * i));
        float& b = x.at(r, begin + (halves ? i + half : 2 * i + 1));
        const double old_a = a, old_b = b;
        a = static_cast<float>(old_a * cosine - old_b * sine);
        b = static_cast<float>(old_a * sine + old_b * cosine);
      }
    }
  }
}

}  // namespace

std::vector<double> rope_frequencies(double theta, std::int64_t dim) {
  std::vector<double> frequencies(at(dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
  }
  return frequencies;
}

void rope(Matrix x, const RopeShape& shape, std::span<const std::int64_t> positions,
          std::span<const double> frequencies) {
  turn(x, shape, positions, frequencies, 1);
}

void rope_backward(Matrix dx, const RopeShape& shape, std::span<const std::int64_t> positions,
                   std::span<const double> frequencies) {
  turn(dx, shape, positions, frequencies, -1);
}

}  // namespace qplan::math
