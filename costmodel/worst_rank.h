#pragma once
// What a plan takes of the rank that has least to spare.

#include <algorithm>

#include "costmodel/evaluate.h"

namespace qplan {

// The most of `value` over the stages. In a cluster of several kinds of GPU those do not count that
// hold more than the worst stage because their GPUs have more: capacity is the worst stage's, too.
inline Bytes on_worst_rank(const MemoryEstimate& memory, Bytes StageMemory::*value) {
  Bytes most;
  for (const StageMemory& stage : memory.stages) {
    if (stage.device <= memory.worst_stage().device) most = std::max(most, stage.*value);
  }
  return most;
}

}  // namespace qplan
