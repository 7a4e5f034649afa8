#pragma once
// Recomputation is an edit of a block: forward ops run again in backward, and what they write is no
// longer kept, because backward now writes it before reading it.

#include "models/parallel_plan.h"
#include "models/program/block.h"

namespace qplan {

// selective: the ops of each module run again just before backward first needs one of their
// results; `by_operators`: what torchtitan's policy does not keep runs again at the start of
// backward, as far as backward needs it. full: the whole forward runs again at the start of
// backward; only the block's input is kept. `forward_weights` are what the repeated ops read in
// forward; in backward they read `backward_weights`.
void recompute(Block& block, RecomputeKind kind, EnumSet<RecomputeModule> modules,
               bool by_operators, SlotId forward_weights, SlotId backward_weights);

}  // namespace qplan
