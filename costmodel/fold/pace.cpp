#include "costmodel/fold/pace.h"

#include <algorithm>
#include <array>
#include <numbers>

#include "models/portable_math.h"

namespace qplan {
namespace {

// Of n normal draws the largest, in standard deviations: of few by Harter's table (Biometrika 48,
// 1961), of 9 and more within 0.08 by Cramer (Mathematical Methods of Statistics, 28.6).
double expected_largest(double n) {
  constexpr std::array kOfFew = {0.0, 0.564, 0.846, 1.029, 1.163, 1.267, 1.352, 1.424};
  if (n <= std::size(kOfFew)) return kOfFew[static_cast<std::size_t>(n) - 1];
  const double root = std::sqrt(2 * portable::log(n));
  return root -
         (portable::log(portable::log(n)) + portable::log(4 * std::numbers::pi)) / (2 * root) +
         std::numbers::egamma / root;
}

}  // namespace

double slowest_of(std::int64_t ranks, const SpeedSpread& spread) {
  return 1 + spread.sigma * (expected_largest(static_cast<double>(ranks)) -
                             expected_largest(spread.measured_ranks));
}

std::int64_t meeting_ranks(const RankGrid& grid) {
  const auto size = [&](Axis axis) -> std::int64_t { return grid.shape(axis).size; };
  return size(Axis::pp) *
         std::max(size(Axis::tp) * size(Axis::cp), size(Axis::etp) * size(Axis::ep));
}

double pace_of(const RankGrid& grid, const SpeedSpread& spread) {
  const double slowest = slowest_of(grid.world(), spread);
  if (spread.waited_share <= 0 || spread.measured_ranks < 2) return slowest;
  // Who waits for the latest of so many waits the longer, the more they are.
  const double waited = spread.waited_share *
                        expected_largest(static_cast<double>(meeting_ranks(grid))) /
                        expected_largest(spread.measured_ranks);
  return slowest * (1 + waited);
}

}  // namespace qplan
