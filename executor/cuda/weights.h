#pragma once
// What a rank on a GPU starts from, and how its numbers are read.

#include "executor/cuda/rank.h"
#include "executor/run.h"

namespace qplan {

// Arrays in the memory of the current device. `alive` is called after each transfer, so that a
// checkpoint may take longer than a step; empty: nothing is.
ArrayAccess device_arrays(const std::function<void()>& alive = {});

// Fills main parameters and working copies from the options' source, and clears the moments; or all
// three from a checkpoint, where there is one.
void load_states(CudaRank& rank, const ParameterIndex& index, const RunOptions& options,
                 const std::optional<Checkpoint>& checkpoint, int device);

}  // namespace qplan
