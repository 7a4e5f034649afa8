#pragma once
// What an implementation has, and which of it a search tries unasked: a column of the table of
// recipes (recipe.h). Rules refuse what is not here; what nobody tries is still done on request.

#include <cstdint>

#include "models/dtype.h"
#include "models/enum_set.h"
#include "models/plan/parallel_plan.h"

namespace qplan {

// The ZeRO stages that a search tries.
struct ZeroStages {
  int first = 1, last = 1;
};

// How much of the states a search moves to the host: nothing only, also the optimizer's states and
// step, or also all states together (FSDP offloads everything or nothing).
enum class StateOffload : std::uint8_t { none, optimizer, whole };

// Whether tensor parallelism splits norms and dropout along the sequence, too.
enum class SequenceSplit : std::uint8_t {
  none,        // a search does not try it
  on_request,  // ... unless asked
  unasked      // wherever tp is above 1
};

// How layers come to pipeline stages where nobody places them.
enum class LayerPlacement : std::uint8_t { evenly, by_cost };

// What a search drops and computes again, besides everything in every layer.
enum class RecomputeChoice : std::uint8_t {
  blocks,   // everything in the first half of each chunk's layers (Megatron's block method)
  modules,  // by name, those that free memory
  unnamed   // one set that the implementation chooses
};

struct Capabilities {
  EnumSet<ScheduleKind> schedules = set_of(ScheduleKind::one_f_one_b);
  EnumSet<Precision> precisions{};
  EnumSet<OptimizerKind> optimizers = set_of(OptimizerKind::adam);  // a search keeps to the plan's
  EnumSet<LossKind> losses{};  // the words that its plans may say
  bool pipeline = true;        // else a plan has one stage
  bool takes_layout = false;   // a plan may say how many layers each stage holds
  LayerPlacement placement = LayerPlacement::evenly;
  // Replicating optimizer states moves as many bytes as sharding them and only holds more, so stage
  // 0 waits until asked for.
  ZeroStages zero{};
  StateOffload offload = StateOffload::none;
  SequenceSplit sequence_split = SequenceSplit::on_request;
  // How ranks of a context exchange keys and values.
  EnumSet<CpComm> cp_exchanges = set_of(CpComm::p2p, CpComm::all_gather, CpComm::a2a);
  EnumSet<RecomputeChoice> recompute{};
  // How token copies travel between expert-parallel ranks. allgather holds every rank's tokens;
  // docs/reference/frameworks.md 1.6 calls it poor, no run here measures it.
  EnumSet<MoeDispatcher> dispatchers = set_of(MoeDispatcher::alltoall);
};

}  // namespace qplan
