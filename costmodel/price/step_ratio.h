#pragma once
// What works take in a training step, over what they are priced alone. In a step kinds alternate
// within the window of the GPU's power limit and share one clock; a kernel finds the caches as the
// one before has left them, and operands are a model's. Steps that were measured say how much that
// is, for each kind of work at the sizes that they had; near those sizes it is much the same.

#include <string>
#include <vector>

#include "costmodel/profiles/hardware.h"
#include "costmodel/shared_memo.h"
#include "models/program/op.h"

namespace qplan {

// Works that behave alike (kind), among those what is related, and the sizes by which they differ.
struct WorkPoint {
  std::string family, kind;
  std::vector<double> sizes;
  // Whether works of far sizes say something, too: of a collective small ones are latency.
  bool far_sizes_count = true;
};
// `ranks` of a collective's group. An empty kind: steps say nothing of such works.
WorkPoint point_of(const Work& work, int ranks);

// How sizes are compared: by their octaves, and what is below 1 as 1.
double log2_size(double size);

// A price without it times this is the work's time in a step: the geometric mean of the ratios of
// its kind, weighed by how near their sizes are. 1 where its kind was not measured, or nowhere
// near.
double step_ratio(const WorkPoint& point, const StepRatios& ratios);

// The same of works of one machine, whose blocks have most of their works in common. Safe to ask
// from several threads.
class StepRatioMemo {
 public:
  double of(const Work& work, int ranks, const StepRatios& ratios);

 private:
  struct Key {
    Work work;
    int ranks;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return hash_of(key.work) * 31 + static_cast<std::size_t>(key.ranks);
    }
  };
  SharedMemo<Key, double, Hash> known_;
};

}  // namespace qplan
