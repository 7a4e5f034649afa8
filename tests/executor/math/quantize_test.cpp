#include "executor/math/quantize.h"

#include <cmath>
#include <limits>

#include "executor/math/rounding.h"
#include "tests/executor/math/gradient.h"

using namespace qplan;
using namespace qplan::math;

namespace {

float scale_of(std::vector<float> x) {
  return quantization_scale(x);
}

}  // namespace

TEST_CASE("a scale is the power of two that brings the largest number below 7/4") {
  CHECK(scale_of({0.5F, -1.0F}) == 1.0F);
  CHECK(scale_of({1.75F}) == 1.0F);
  CHECK(scale_of({-1.7500001F}) == 2.0F);
  CHECK(scale_of({3.0F, 100.0F}) == 64.0F);
  CHECK(scale_of({3e-5F}) == 0x1p-15F);
  CHECK(scale_of({1.0F, std::numeric_limits<float>::quiet_NaN()}) == 1.0F);
  // Numbers that are all too small, or infinite, have one too.
  CHECK(scale_of({0.0F}) == 0x1p-100F);
  CHECK(scale_of({std::numeric_limits<float>::infinity()}) == 0x1p126F);
}

TEST_CASE("the scale of several arrays together is the largest of theirs") {
  const auto a = random_floats(100, 1), b = random_floats(50, 2);
  auto both = a;
  both.insert(both.end(), b.begin(), b.end());
  CHECK(quantization_scale(both) == std::max(quantization_scale(a), quantization_scale(b)));
}

TEST_CASE("scaled numbers come back within half a unit of their format") {
  // 3 bits of fraction, 2 of e5m2: half a unit is at most 2^-4 and 2^-3 of the number.
  for (const auto& [format, half] : {std::pair{DType::fp8, 0x1p-4F}, {DType::fp8_e5m2, 0x1p-3F}}) {
    const auto x = random_floats(1000, 3);
    const float scale = quantization_scale(x);
    auto y = x;
    scale_to(format, scale, y);
    round_to(format, y);
    float largest = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      // As one factor of a product with ones.
      const float back = y[i] * product_scale(format, scale, format, 1) *
                         std::ldexp(1.0F, quantized_exponent(format));
      largest = std::max(largest, std::abs(y[i]));
      if (std::abs(y[i]) > 0x1p-5F) CHECK(std::abs(back - x[i]) <= half * std::abs(x[i]));
    }
    // No number is cut off, and the range is used.
    const float most = format == DType::fp8 ? 448 : 57344;
    CHECK(largest <= most);
    CHECK(largest >= most / 2);
  }
}

TEST_CASE("a power of two more in the scale rounds the same") {
  const auto x = random_floats(1000, 4);
  for (const DType format : {DType::fp8, DType::fp8_e5m2}) {
    auto a = x, b = x;
    scale_to(format, 1, a);
    scale_to(format, 2, b);
    round_to(format, a);
    round_to(format, b);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::abs(b[i]) > 0x1p-6F) CHECK(a[i] == 2 * b[i]);
    }
  }
}
