#include "costmodel/price/interpolate.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "models/portable_math.h"

namespace qplan {
namespace {

// Between axis[index] and axis[index + 1], `weight` of the way in logarithms.
struct Place {
  std::size_t index = 0;
  float weight = 0;
};

Place locate(const std::vector<std::int64_t>& axis, double x) {
  if (axis.size() == 1 || x <= static_cast<double>(axis.front())) return {};
  if (x >= static_cast<double>(axis.back())) return {axis.size() - 2, 1};
  const auto above =
      std::upper_bound(axis.begin(), axis.end(), x,
                       [](double value, std::int64_t a) { return value < static_cast<double>(a); });
  const auto index = static_cast<std::size_t>(above - axis.begin()) - 1;
  const auto low = static_cast<float>(axis[index]);
  if (static_cast<float>(x) == low) return {index, 0};
  const auto high = static_cast<float>(axis[index + 1]);
  return {index, std::log(static_cast<float>(x) / low) / std::log(high / low)};
}

double clamp(const std::vector<std::int64_t>& axis, double x) {
  return std::clamp(x, static_cast<double>(axis.front()), static_cast<double>(axis.back()));
}

}  // namespace

GemmPoint clamp_to(const GemmTable& table, GemmPoint point) {
  return {clamp(table.m, point.m), clamp(table.n, point.n), clamp(table.k, point.k)};
}

std::optional<double> utilisation_at(const GemmTable& table, GemmPoint point) {
  const std::array<Place, 3> places{locate(table.m, point.m), locate(table.n, point.n),
                                    locate(table.k, point.k)};
  const std::array<std::size_t, 3> stride{table.n.size() * table.k.size(), table.k.size(), 1};
  float log_utilisation = 0;
  for (unsigned corner = 0; corner < 8; ++corner) {
    float weight = 1;
    std::size_t at = 0;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      const bool upper = ((corner >> axis) & 1U) != 0;
      weight *= upper ? places[axis].weight : 1 - places[axis].weight;
      at += (places[axis].index + (upper ? 1 : 0)) * stride[axis];
    }
    if (weight == 0) continue;  // also keeps axes of one point in bounds
    log_utilisation += weight * std::log(table.utilisation[at]);
  }
  if (std::isnan(log_utilisation)) return std::nullopt;
  return std::exp(log_utilisation);
}

Seconds time_at(const CollectiveTable& table, Bytes bytes) {
  if (bytes <= table.bytes.front()) return table.times.front();
  if (bytes >= table.bytes.back()) return table.times.back() * (bytes / table.bytes.back());
  const auto above = std::upper_bound(table.bytes.begin(), table.bytes.end(), bytes);
  const auto high = static_cast<std::size_t>(above - table.bytes.begin());
  const std::size_t low = high - 1;
  const double weight =
      portable::log(bytes / table.bytes[low]) / portable::log(table.bytes[high] / table.bytes[low]);
  return table.times[low] * portable::pow(table.times[high] / table.times[low], weight);
}

}  // namespace qplan
