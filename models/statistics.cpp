#include "models/statistics.h"

#include <cmath>

namespace qplan {

std::optional<double> weighted_mean(const Weighted& values) {
  double sum = 0, weight = 0;
  for (const auto& [value, w] : values) {
    sum += value * w;
    weight += w;
  }
  return weight > 0 ? std::optional(sum / weight) : std::nullopt;
}

std::optional<double> quantile(Weighted values, double q) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  // Each value stands at the middle of its weight; the first and the last are the ends.
  const double first = values.front().second / 2, last = values.back().second / 2;
  double total = -first - last;
  for (const auto& [value, weight] : values) total += weight;
  const double wanted = q * total;
  double at = -first;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double here = at + values[i].second / 2;
    at += values[i].second;
    if (i + 1 == values.size()) break;
    const double next = at + values[i + 1].second / 2;
    if (wanted > next) continue;
    const double share = next > here ? (wanted - here) / (next - here) : 0;
    return values[i].first + share * (values[i + 1].first - values[i].first);
  }
  return values.back().first;
}

std::optional<double> kendall_tau_b(const std::vector<std::pair<double, double>>& pairs) {
  const auto order = [](double a, double b) { return a < b ? -1 : a > b ? 1 : 0; };
  double agreement = 0, untied_first = 0, untied_second = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    for (std::size_t j = i + 1; j < pairs.size(); ++j) {
      const int first = order(pairs[i].first, pairs[j].first);
      const int second = order(pairs[i].second, pairs[j].second);
      agreement += first * second;
      untied_first += first != 0 ? 1 : 0;
      untied_second += second != 0 ? 1 : 0;
    }
  }
  if (untied_first == 0 || untied_second == 0) return std::nullopt;
  return agreement / std::sqrt(untied_first * untied_second);
}

}  // namespace qplan
