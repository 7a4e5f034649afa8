#pragma once
// Two microbatches at once: the forward of one and the backward of another run side by side, so
// that each hides the other's exchanges (Megatron's overlap_moe_expert_parallel_comm).

#include "models/program/block.h"
#include "models/program/blocks.h"
#include "models/program/liveness.h"
#include "models/program/step_program.h"

namespace qplan {

// The ops of both lists as one line. Each list is cut after its communication; the pieces
// alternate, and a piece waits for its own list's communication only, which the other list's
// compute has hidden. Slots keep the numbers of their own block: `from[i]` says whose op i is.
// Within each list the order stays; the joins between pieces are nobody's.
enum class MergedFrom : std::uint8_t { forward, backward, neither };
struct MergedOps {
  OpList ops;
  std::vector<MergedFrom> from;
};
MergedOps merge_passes(const OpList& forward, const OpList& backward);

// What the two passes of one pair of blocks do to memory. Buffers come and go with the ops of their
// own list; what a list frees at its end is freed when both have ended.
MemoryUse merged_memory_use(const Block& forward, const Block& backward, BackwardForm form);

// How a forward stage and a backward stage run together: blocks that only one of them has run
// alone, decoder layers in pairs. `forward` or `backward` is null where a block runs alone.
struct PairedRun {
  const BlockShape* forward = nullptr;
  const BlockShape* backward = nullptr;
  int count = 1;
};
std::vector<PairedRun> pair_stages(const StageRuns& forward, const StageRuns& backward);

}  // namespace qplan
