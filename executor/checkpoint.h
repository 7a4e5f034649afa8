#pragma once
// A rank's share of a checkpoint, whatever executes it: which elements of which parameters its
// optimizer keeps.

#include <vector>

#include "executor/io/checkpoint.h"
#include "executor/states.h"

namespace qplan {

// What this rank saves: of what several ranks hold alike, the first one's. Values are read when the
// checkpoint is written.
std::vector<SavedState> saved_states(Rank& rank, const ParameterIndex& index,
                                     const ArrayAccess& arrays);

// Fills a block's moments from a checkpoint. (Its parameters come from weights_of(checkpoint).)
void load_moments(Rank& rank, const ParameterIndex& index, int instance,
                  const Checkpoint& checkpoint, const ArrayAccess& arrays);

}  // namespace qplan
