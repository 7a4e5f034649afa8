#include "executor/math/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace qplan::math {
namespace {

constexpr std::uint32_t kMantissaBits = 23, kBias = 127;
constexpr std::uint32_t kLeast = kBias - 100, kMost = kBias + 126;  // exponents of a scale

}  // namespace

float quantization_scale(ConstFloats x) {
  float largest = 0;
  for (const float v : x) largest = std::fmax(largest, std::abs(v));  // passes by NaN
  const auto bits = std::bit_cast<std::uint32_t>(largest);
  // largest = m 2^e with m in [1, 2): its scale is 2^e, or 2^(e+1) where m is beyond 7/4.
  const std::uint32_t mantissa = bits & 0x7fffffU;
  const std::uint32_t exponent = (bits >> kMantissaBits) + (mantissa > 0x600000U ? 1U : 0U);
  return std::bit_cast<float>(std::clamp(exponent, kLeast, kMost) << kMantissaBits);
}

int quantized_exponent(DType format) {
  QPLAN_CHECK(is_fp8(format), "fp8 has two formats");
  return format == DType::fp8 ? 8 : 15;
}

void scale_to(DType format, float scale, Floats x) {
  const float factor = std::ldexp(1 / scale, quantized_exponent(format));
  for (float& v : x) v *= factor;
}

float product_scale(DType a, float a_scale, DType b, float b_scale) {
  return std::ldexp(a_scale, -quantized_exponent(a)) * std::ldexp(b_scale, -quantized_exponent(b));
}

void transpose(ConstMatrix from, Matrix to) {
  QPLAN_CHECK(from.rows == to.cols && from.cols == to.rows, "rows become columns");
  for (std::int64_t r = 0; r < from.rows; ++r) {
    for (std::int64_t c = 0; c < from.cols; ++c) to.at(c, r) = from.at(r, c);
  }
}

}  // namespace qplan::math
