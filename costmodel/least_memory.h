#pragma once
// Whether a plan can fit at all, by the states of its decoder layers alone: what a search may leave
// out before it asks anything else.

#include <shared_mutex>
#include <unordered_map>

#include "costmodel/evaluate.h"
#include "models/program/step_program.h"

namespace qplan {

// Plans that share out the same states have one answer, which is remembered. Safe to ask from
// several threads.
class LeastMemory {
 public:
  explicit LeastMemory(const CostModel& cost) : cost_(cost) {}

  // What the plan's decoder layers hold at least, wherever they lie, whatever is recomputed.
  struct Needs {
    Bytes device;                 // of the fullest rank
    bool more_than_host = false;  // ... and whether the hosts have no room for their part
  };
  Needs needs(const ParallelPlan& plan);

  // False says nothing. True: the plan's decoder layers have states that fill more than the devices
  // or hosts of its pipeline, wherever its layers lie, whatever it recomputes.
  bool cannot_fit(const ParallelPlan& plan);

  static constexpr double kRounding = 1 + 1e-9;  // of sums in another order

 private:
  // Of the decoder layers of a whole pipeline, one copy.
  struct Held {
    Bytes device;          // states that live there for the whole step
    double offloaded = 0;  // elements of a rank whose states may be the host's
  };
  [[nodiscard]] Held held_by_layers(const ParallelPlan& plan, const BlockShape& base) const;
  Held held(const ParallelPlan& plan, const BlockShape& base);

  struct Hash {
    std::size_t operator()(const BlockShape& shape) const { return hash_of(shape); }
  };
  const CostModel& cost_;
  std::shared_mutex mutex_;
  std::unordered_map<BlockShape, Held, Hash> known_;  // by state_shape() of plans' bases
};

}  // namespace qplan
