#include "models/portable_math.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

using namespace qplan;

namespace {

// Units of the last place between a result and the truth, which a long double of 64 bits is here.
double units_off(double result, long double truth) {
  const double unit = std::nextafter(std::abs(result), INFINITY) - std::abs(result);
  return static_cast<double>(std::abs(static_cast<long double>(result) - truth) /
                             static_cast<long double>(unit));
}

}  // namespace

TEST_SUITE("portable math") {
  TEST_CASE("logarithms and exponentials are within one unit of the last place") {
    std::mt19937_64 random(1);
    double log = 0, log2 = 0, exp = 0;
    for (int i = 0; i < 200'000; ++i) {
      const double share = static_cast<double>(random() >> 11U) * 0x1p-53;
      // Near 1, where a logarithm is small, and everywhere.
      const double x = i % 2 == 0 ? 0.5 + 1.5 * share
                                  : std::ldexp(1 + share, static_cast<int>(random() % 2000) - 1000);
      if (x != 1) {
        log = std::max(log, units_off(portable::log(x), std::log(static_cast<long double>(x))));
        log2 = std::max(log2, units_off(portable::log2(x), std::log2(static_cast<long double>(x))));
      }
      const double y = (i % 2 == 0 ? 1 : 700) * (2 * share - 1);
      exp = std::max(exp, units_off(portable::exp(y), std::exp(static_cast<long double>(y))));
    }
    CHECK(log < 1);
    CHECK(log2 < 2);
    CHECK(exp < 1);
  }

  TEST_CASE("what is exact stays exact") {
    CHECK(portable::log(1) == 0);
    CHECK(portable::exp(0) == 1);
    for (int k = -1070; k < 1024; ++k) CHECK(portable::log2(std::ldexp(1, k)) == k);
    CHECK(portable::pow(0.25, 0) == 1);
    CHECK(portable::pow(1, 12345) == 1);
    CHECK(portable::pow(0, 8) == 0);
    CHECK(portable::pow(-0.5, 3) == -portable::pow(0.5, 3));
    CHECK(portable::pow(-0.5, 2) == portable::pow(0.5, 2));
    CHECK(std::isnan(portable::pow(-0.5, 0.5)));
  }

  TEST_CASE("the ends of the range are the library's") {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    CHECK(portable::log(0) == -kInfinity);
    CHECK(portable::log(kInfinity) == kInfinity);
    CHECK(std::isnan(portable::log(-1)));
    CHECK(std::isnan(portable::log(std::nan(""))));
    CHECK(std::isnan(portable::log2(-1)));
    CHECK(std::isnan(portable::exp(std::nan(""))));
    CHECK(portable::exp(710) == kInfinity);
    CHECK(portable::exp(-kInfinity) == 0);
    CHECK(portable::exp(-740) == doctest::Approx(std::exp(-740)));
    CHECK(portable::exp(709.7) == doctest::Approx(std::exp(709.7)));
    CHECK(portable::log(std::numeric_limits<double>::denorm_min()) ==
          doctest::Approx(-1074 * std::log(2)));
  }

  TEST_CASE("powers and the gamma function are the library's to twelve digits and more") {
    for (const double base : {1e-9, 0.03125, 0.5, 0.999, 1.5, 7.0, 1e6}) {
      for (const double exponent : {-3.0, -0.5, 0.25, 1.0, 2.0, 8.0, 31.5}) {
        CAPTURE(base);
        CAPTURE(exponent);
        CHECK(portable::pow(base, exponent) ==
              doctest::Approx(std::pow(base, exponent)).epsilon(1e-13));
      }
    }
    for (double x = 0.25; x < 2000; x *= 1.37) {
      CAPTURE(x);
      CHECK(std::abs(portable::lgamma(x) - std::lgamma(x)) <=
            1e-14 * std::max(1.0, std::abs(std::lgamma(x))));
    }
  }

  // The bits themselves, so that another machine or compiler that makes others fails.
  TEST_CASE("the bits are the same everywhere") {
    std::uint64_t bits = 14695981039346656037ULL;
    for (int i = 1; i <= 100'000; ++i) {
      const double x = i * 0.37;
      for (const double y : {portable::log(x), portable::log2(x), portable::exp(x / 1000 - 18),
                             portable::pow(x, 0.3), portable::lgamma(x)}) {
        bits = (bits ^ std::bit_cast<std::uint64_t>(y)) * 1099511628211ULL;
      }
    }
    CHECK(bits == 17227975401227113670ULL);
  }
}
