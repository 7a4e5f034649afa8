#pragma once
// A rank's share of a checkpoint: which elements of which parameters its optimizer keeps.

#include <vector>

#include "executor/cpu_rank.h"
#include "executor/io/checkpoint.h"
#include "executor/weights.h"

namespace qplan {

// What this rank saves: of what several ranks hold alike, the first one's. Values are read when the
// checkpoint is written.
std::vector<SavedState> saved_states(CpuRank& rank, const ParameterIndex& index);

// Fills the rank's moments from a checkpoint. (Its parameters come from weights_of(checkpoint).)
void load_moments(CpuRank& rank, const ParameterIndex& index, const Checkpoint& checkpoint);

}  // namespace qplan
