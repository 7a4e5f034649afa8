#pragma once
// Random floats, and a check of a backward pass against differences of its forward pass.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "executor/math/matrix.h"

namespace qplan::math {

inline std::vector<float> random_floats(std::int64_t count, unsigned seed, float spread = 1) {
  std::mt19937 bits(seed);
  std::uniform_real_distribution<float> uniform(-spread, spread);
  std::vector<float> x(at(count));
  for (float& v : x) v = uniform(bits);
  return x;
}

inline double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// `loss()` reads x. Its slope along every element is dx. Five points: the error of the difference
// is of order h^4 = 2e-7, that of fp32 results about 1e-7 / h = 5e-6 a term of the loss.
template <class Loss>
void check_gradient(Loss loss, std::vector<float>& x, const std::vector<float>& dx,
                    double tolerance = 2e-4) {
  constexpr float h = 0.02F;
  REQUIRE(x.size() == dx.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float kept = x[i];
    const auto at_offset = [&](float offset) {
      x[i] = kept + offset;
      return static_cast<double>(loss());
    };
    const double slope =
        (8 * (at_offset(h) - at_offset(-h)) - (at_offset(2 * h) - at_offset(-2 * h))) / (12.0 * h);
    x[i] = kept;
    CAPTURE(i);
    CHECK(std::abs(slope - dx[i]) <= tolerance * std::max(1.0, std::abs(slope)));
  }
}

}  // namespace qplan::math
