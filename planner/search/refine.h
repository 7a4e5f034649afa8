#pragma once
// Inside the search: what its best plans become by a step aside, in words of which not every value
// is enumerated. Private to planner/search.

#include <limits>
#include <optional>
#include <vector>

#include "planner/search/sieve.h"

namespace qplan {

inline constexpr Seconds kNever(std::numeric_limits<double>::infinity());

// A plan that fits.
struct Candidate {
  ParallelPlan plan;
  Bytes device_peak;
  Seconds step_time = kNever;
  bool refused = false;  // by SearchOptions::accepts
};

// Whether the search says which stage has which layers.
bool places_layers(const CostModel& cost, const SearchSpace& space);

// The plan with its layers moved; nothing where they are where they would be.
std::optional<ParallelPlan> evened(const CostModel& cost, const ParallelPlan& plan);

// Neighbours of the `kFewest` best of `known` that the rules allow, that fit, and that are not
// among `known`: with other chunks, and layers moved between their stages; with no more layers
// recomputed and no more of the optimizer on the host than must be; with experts' exchange beside
// other microbatches. What was asked for stays.
std::vector<Candidate> neighbours_of_best(const CostModel& cost, const SearchSpace& space,
                                          const SearchOptions& options,
                                          const std::vector<Candidate>& known);

}  // namespace qplan
