#pragma once
// What a rank on a GPU starts from.

#include "executor/cuda_rank.h"
#include "executor/run.h"
#include "executor/weights.h"

namespace qplan {

// Fills main parameters and working copies from the options' source, and clears the moments.
void load_weights(CudaRank& rank, const ParameterIndex& index, const RunOptions& options,
                  int device);

}  // namespace qplan
