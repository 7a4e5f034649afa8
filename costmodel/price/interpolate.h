#pragma once
// Reading between the points of measured tables.

#include <cstdint>
#include <optional>

#include "costmodel/profiles/hardware.h"

namespace qplan {

// A point of a table's (m, n, k) space.
struct GemmPoint {
  double m = 0, n = 0, k = 0;
};

// The point of the table's hull nearest to `point`.
GemmPoint clamp_to(const GemmTable& table, GemmPoint point);

// Utilisation at `point`: multi-linear, its logarithm against those of m, n and k. The point is
// clamped to the hull. Nothing where a neighbour was not measured.
std::optional<double> utilisation_at(const GemmTable& table, GemmPoint point);

// Time of a collective over `bytes`: straight lines between measured sizes, logarithm against
// logarithm. Below the table its first time, beyond it its last bandwidth.
Seconds time_at(const CollectiveTable& table, Bytes bytes);

}  // namespace qplan
