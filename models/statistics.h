#pragma once
// Middles, means and orders of numbers, defined once.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "models/error.h"

namespace qplan {

// The middle one in order; of an even number the upper of the two, so that it is one of them.
template <class T>
T median_of(std::vector<T> values) {
  QPLAN_CHECK(!values.empty(), "a median is of at least one value");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

using Weighted = std::vector<std::pair<double, double>>;  // value, weight

// Nothing of no weight.
std::optional<double> weighted_mean(const Weighted& values);

// The value below which a share q of the weight lies, interpolated: with equal weights, the
// (n-1)q-th of the sorted values. Nothing of no values.
std::optional<double> quantile(Weighted values, double q);

// Kendall's tau-b of pairs: -1 reversed, 1 the same order, ties in either counted out. Nothing
// where one side is all ties.
std::optional<double> kendall_tau_b(const std::vector<std::pair<double, double>>& pairs);

}  // namespace qplan
