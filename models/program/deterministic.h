#pragma once
// What torch's deterministic algorithms add to a block besides other kernels.

#include "models/program/block.h"

namespace qplan {

// Fills every array that a product, attention or a norm is about to write for the first time in its
// list. torch.use_deterministic_algorithms(True) fills what torch.empty returns
// (torch.utils.deterministic.fill_uninitialized_memory, on by default), which is where Transformer
// Engine's kernels write; torch's own elementwise kernels allocate their results without it.
void fill_new_arrays(Block& block);

}  // namespace qplan
