#include "models/statistics.h"

#include <doctest/doctest.h>

#include <cmath>

#include "models/units.h"

namespace qplan {
namespace {

// Sums of a few doubles: what is left is rounding.
constexpr double kRounding = 1e-12;

bool near(const std::optional<double>& value, double expected) {
  return value && *value == doctest::Approx(expected).epsilon(kRounding);
}

TEST_CASE("a median is the middle value, of an even number the upper of the two") {
  CHECK(median_of(std::vector{3, 1, 2}) == 2);
  CHECK(median_of(std::vector{4, 1, 3, 2}) == 3);
  CHECK(median_of(std::vector{7}) == 7);
  CHECK(median_of(std::vector{Seconds(2), Seconds(5), Seconds(3)}) == Seconds(3));
}

TEST_CASE("a weighted mean leans to what weighs more, and is nothing of no weight") {
  CHECK(near(weighted_mean({{1, 1}, {4, 2}}), 3));
  CHECK_FALSE(weighted_mean({}));
  CHECK_FALSE(weighted_mean({{1, 0}}));
}

TEST_CASE("a quantile lies between the values that a share of the weight divides") {
  const Weighted alike{{4, 1}, {1, 1}, {3, 1}, {2, 1}};
  CHECK(near(quantile(alike, 0), 1));
  CHECK(near(quantile(alike, 0.5), 2.5));  // between the two, where median_of takes the upper
  CHECK(near(quantile(alike, 0.9), 3.7));  // (n-1) x 0.9 = 2.7
  CHECK(near(quantile(alike, 1), 4));
  // The middle of the weight stands where the heavy value does.
  CHECK(near(quantile({{1, 1}, {2, 8}, {3, 1}}, 0.5), 2));
  CHECK(near(quantile({{5, 1}}, 0.3), 5));
  CHECK_FALSE(quantile({}, 0.5));
}

TEST_CASE("tau-b counts agreeing pairs less disagreeing ones, ties out") {
  CHECK(near(kendall_tau_b({{1, 10}, {2, 20}, {3, 30}}), 1));
  CHECK(near(kendall_tau_b({{1, 30}, {2, 20}, {3, 10}}), -1));
  CHECK(near(kendall_tau_b({{1, 10}, {2, 30}, {3, 20}}), 1.0 / 3));
  // One tie on the right: 2 agreeing pairs over sqrt(3 x 2).
  CHECK(near(kendall_tau_b({{1, 10}, {2, 10}, {3, 20}}), 2 / std::sqrt(6.0)));
  CHECK_FALSE(kendall_tau_b({{1, 10}, {2, 10}}));
}

}  // namespace
}  // namespace qplan
