#pragma once
// Recomputation is an edit of a block: forward ops run again in backward, and what they write is no
// longer kept, because backward now writes it before reading it.

#include <initializer_list>

#include "models/program/block.h"
#include "models/program/blocks.h"
#include "models/program/recipe.h"

namespace qplan {

// What the shape says. selective: the ops of each module run again just before backward first needs
// one of their results; by operators, what torchtitan's policy does not keep runs again at the
// start of backward, as far as backward needs it. full: forward runs again at the start of
// backward, whole or as far as backward needs it (Recipe::keeps.recomputes_dead_ops); only the
// block's input is kept. Of each pair of weights the repeated ops read the first in forward, in
// backward the second.
struct WeightSlots {
  SlotId forward = kNoSlot, backward = kNoSlot;
};
void recompute(Block& block, const Recipe& recipe, const BlockShape& shape,
               std::initializer_list<WeightSlots> weights);

}  // namespace qplan
