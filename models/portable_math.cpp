#include "models/portable_math.h"

#include <array>
#include <cmath>
#include <limits>
#include <numbers>

namespace qplan::portable {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// log(2) in two parts: the first has 21 trailing zeros, so that its products with exponents are
// exact.
constexpr double kLog2High = 0x1.62e42feep-1, kLog2Low = 0x1.a39ef35793c76p-33;

// x = mantissa * 2^exponent, mantissa in [sqrt(1/2), sqrt(2)). (std::frexp and std::ldexp are
// exact.)
struct Parts {
  double mantissa;
  int exponent;
};
Parts parts_of(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < std::numbers::sqrt2 / 2) {
    mantissa *= 2;
    --exponent;
  }
  return {mantissa, exponent};
}

// log(1 + f) = 2 artanh(s) with s = f / (2 + f), |s| < 0.172: 2 s + s R, where R = 2 s^2 (1/3 +
// s^2/5 + ...) has 11 terms, the next being below 2^-60. Written as f - (h - s (h + R)), h = f^2/2,
// in which the large part is exact; `shift` is added where the small ones are.
double log_of_mantissa(double f, double shift) {
  constexpr int kTerms = 11;
  const double s = f / (2 + f), z = s * s;
  double series = 0;
  for (int k = kTerms; k >= 1; --k) series = series * z + 2.0 / (2 * k + 1);
  const double h = f * f / 2;
  return f - (h - (s * (h + z * series) + shift));
}

}  // namespace

double log(double x) {
  if (!(x > 0)) return x == 0 ? -kInfinity : std::numeric_limits<double>::quiet_NaN();
  if (x == kInfinity) return x;
  const auto [mantissa, exponent] = parts_of(x);
  const double e = exponent;
  return e * kLog2High + log_of_mantissa(mantissa - 1, e * kLog2Low);
}

double log2(double x) {
  if (!(x > 0) || x == kInfinity) return log(x);
  const auto [mantissa, exponent] = parts_of(x);
  return exponent + log_of_mantissa(mantissa - 1, 0) * std::numbers::log2e;
}

double exp(double x) {
  if (std::isnan(x)) return x;
  if (x > 710) return kInfinity;
  if (x < -746) return 0;
  const double k = std::floor(x * std::numbers::log2e + 0.5);
  const double high = x - k * kLog2High, low = k * kLog2Low, r = high - low;
  // r^2 (1/2! + r/3! + ...), |r| < 0.35: the term of r^15 is below 2^-60.
  constexpr int kLast = 14;
  static constexpr std::array kInverseFactorials = [] {
    std::array<double, kLast + 1> inverse{1};
    double factorial = 1;
    for (int n = 1; n <= kLast; ++n) inverse[static_cast<std::size_t>(n)] = 1 / (factorial *= n);
    return inverse;
  }();
  double series = 0;
  for (std::size_t n = kLast; n >= 2; --n) series = series * r + kInverseFactorials[n];
  return std::ldexp(1 + (high - (low - r * r * series)), static_cast<int>(k));
}

double pow(double base, double exponent) {
  if (exponent == 0 || base == 1) return 1;
  if (base == 0) return exponent > 0 ? 0 : kInfinity;
  if (base < 0) {  // a whole exponent gives it a sign
    if (std::floor(exponent) != exponent) return std::numeric_limits<double>::quiet_NaN();
    const double size = pow(-base, exponent);
    return std::fmod(exponent, 2) == 0 ? size : -size;
  }
  return exp(exponent * log(base));
}

double lgamma(double x) {
  // Stirling's series from 16 on, where its fifth term is below 2^-55; smaller arguments go up to
  // it.
  double below = 1;
  while (x < 16) below *= x++;
  const double inverse = 1 / x, square = inverse * inverse;
  const double series =
      inverse *
      (1.0 / 12 -
       square * (1.0 / 360 - square * (1.0 / 1260 - square * (1.0 / 1680 - square / 1188))));
  constexpr double kHalfLogOfTwoPi = 0.91893853320467274178;
  return (x - 0.5) * log(x) - x + kHalfLogOfTwoPi + series - log(below);
}

}  // namespace qplan::portable
