#include "costmodel/rollout/response_lengths.h"

#include <algorithm>
#include <cmath>

#include "models/portable_math.h"

namespace qplan {
namespace {

// The normal distribution's quantile, by bisection of its distribution function: to 1e-9, and
// nothing here is called often.
double normal_quantile(double p) {
  double low = -9, high = 9;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

std::int64_t cut(double length, std::int64_t max) {
  return std::clamp<std::int64_t>(std::llround(length), 1, std::max<std::int64_t>(max, 1));
}

}  // namespace

std::vector<std::int64_t> ResponseLengths::quantiles(std::int64_t n) const {
  std::vector<std::int64_t> lengths;
  lengths.reserve(static_cast<std::size_t>(n));
  if (!stated.empty()) {
    std::vector<std::int64_t> sorted = stated;
    std::sort(sorted.begin(), sorted.end());
    for (std::int64_t i = 0; i < n; ++i) {
      const double place = (static_cast<double>(i) + 0.5) / static_cast<double>(n);
      lengths.push_back(
          sorted[static_cast<std::size_t>(place * static_cast<double>(sorted.size()))]);
    }
    return lengths;
  }
  std::vector<double> deviations;
  deviations.reserve(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    deviations.push_back(spread *
                         normal_quantile((static_cast<double>(i) + 0.5) / static_cast<double>(n)));
  }
  const auto mean_at = [&](double median) {
    double sum = 0;
    for (const double d : deviations) {
      sum += std::min(median * portable::exp(d), static_cast<double>(max));
    }
    return sum / static_cast<double>(n);
  };
  // The median whose answers, cut, have the stated mean. A mean at the maximum has no finite one.
  double low = 0, high = 1e6 * static_cast<double>(max);
  for (int i = 0; i < 80; ++i) {
    const double middle = (low + high) / 2;
    (mean_at(middle) < std::min(mean, static_cast<double>(max)) ? low : high) = middle;
  }
  for (const double d : deviations) lengths.push_back(cut(high * portable::exp(d), max));
  return lengths;
}

}  // namespace qplan
