#pragma once
// Inside the search: plans whose states alone are more than there is room for. Nobody prices them
// or asks what they hold besides; where nothing fits they are looked at once more, for the one that
// needs least. Private to planner/search.

#include <cstdint>
#include <optional>
#include <vector>

#include "costmodel/least_memory.h"
#include "planner/search/enumerate.h"
#include "planner/search/search.h"

namespace qplan {

// Whether moving layers between stages may make a plan one of the fastest so far. Where each
// chunk recomputes a number of its layers, other chunks recompute others, and no bound holds.
bool may_be_evened(const ParallelPlan& plan);

// Whether a plan that does not fit, with `device_peak` at least, may with two layers moved away
// from the rank that is fullest.
bool may_fit_evened(const CostModel& cost, const SearchOptions& options, const ParallelPlan& plan,
                    Bytes device_peak);

// Of all plans of a search; safe to ask from several threads.
class HeldStates {
 public:
  HeldStates(const CostModel& cost, const SearchOptions& options)
      : cost_(cost), options_(options), least_(cost) {}
  // What the plan needs at least of a device, where that or what its hosts need rules it out, with
  // layers moved, too. Nothing: it may fit.
  std::optional<Bytes> rule_out(const ParallelPlan& plan);

 private:
  const CostModel& cost_;
  const SearchOptions& options_;
  LeastMemory least_;
};

// Plans that were ruled out, in the order in which they were enumerated.
class Hopeless {
 public:
  struct OfFamily {
    Bytes least;
    std::uint32_t place;  // in the family
  };
  void add(const Family& family, const std::vector<OfFamily>& plans);
  // Those of the others come behind these.
  void append(Hopeless others);
  [[nodiscard]] std::int64_t count() const { return std::ssize(plans_); }
  // The first of those that need least; nothing where none needs less than `known`.
  [[nodiscard]] std::optional<RankedPlan> smallest(const CostModel& cost,
                                                   const std::optional<RankedPlan>& known) const;

 private:
  struct Plan {
    Bytes least;
    std::uint32_t family, place;
  };
  std::vector<Family> families_;
  std::vector<Plan> plans_;
};

}  // namespace qplan
