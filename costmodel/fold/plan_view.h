#pragma once
// Inside the cost model: how a plan is taken apart, and what is remembered. Private to costmodel.

#include <algorithm>
#include <array>
#include <bit>
#include <initializer_list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "costmodel/evaluate.h"
#include "costmodel/fold/block_cost.h"
#include "costmodel/fold/pace.h"
#include "costmodel/fold/pipeline.h"
#include "costmodel/price/step_ratio.h"
#include "costmodel/shared_memo.h"
#include "models/error.h"
#include "models/hash.h"

namespace qplan {

struct ShapeHash {
  std::size_t operator()(const BlockShape& s) const { return hash_of(s); }
};

// Which groups a price may depend on, as one number.
inline std::uint64_t groups_hash(const RankGrid& grid, std::initializer_list<Axis> axes) {
  std::uint64_t hash = kHashSeed;
  for (const Axis axis : axes) {
    const GroupShape& g = grid.shape(axis);
    for (const int n : {g.size, g.ranks_per_node, g.nodes, g.concurrent_groups}) {
      hash = hash_mix(hash, static_cast<std::uint64_t>(n));
    }
    for (const double load : {g.pods.edge, g.pods.exchange}) {
      hash = hash_mix(hash, std::bit_cast<std::uint64_t>(load));
    }
  }
  return hash;
}

struct DelayKey {
  BlockShape shape;
  std::uint64_t facts = 0;  // facts_of()
  std::optional<CudaGraphScope> graphs;
  BackwardForm backward = BackwardForm::whole;
  bool operator==(const DelayKey&) const = default;
};
struct DelayHash {
  std::size_t operator()(const DelayKey& k) const {
    return (hash_of(k.shape) ^ k.facts) * 9 +
           (k.graphs ? 3 + 3 * static_cast<std::size_t>(*k.graphs) : 0) +
           static_cast<std::size_t>(k.backward);
  }
};

// Delays of the parts of a stage, at the places of `Part`.
using PartDelays = std::array<StreamDelay, kPartCount>;
constexpr std::size_t at(Part part) {
  return static_cast<std::size_t>(part);
}

// Delays of those parts of a block that were asked for, two to five of twelve: a search over
// thousands of GPUs keeps hundreds of thousands of blocks.
class BlockDelays {
 public:
  void add(Part part, const StreamDelay& delay) { known_.emplace_back(part, delay); }
  [[nodiscard]] const StreamDelay& of(Part part) const {
    const auto is_part = [part](const auto& known) { return known.first == part; };
    const auto it = std::find_if(known_.begin(), known_.end(), is_part);
    QPLAN_CHECK(it != known_.end(), "a block's part is priced before it is run");
    return it->second;
  }

 private:
  std::vector<std::pair<Part, StreamDelay>> known_;
};

// What one microbatch takes on the compute stream, forward and backward, in seconds.
struct BlockBusy {
  double forward = 0, backward = 0, weight = 0;
};

// Blocks of a stage in sequence: at least what the stage's delay says.
struct StageBusy {
  double forward = 0, backward = 0, weight = 0;
  double decoder = 0;  // decoder layers' part of them
  [[nodiscard]] double total() const { return forward + backward + weight; }
};

// Two blocks that run as a pair.
struct PairKey {
  DelayKey forward, backward;
  bool operator==(const PairKey&) const = default;
};
struct PairHash {
  std::size_t operator()(const PairKey& k) const {
    return DelayHash{}(k.forward) * 31 + DelayHash{}(k.backward);
  }
};

struct ScheduleHash {
  std::size_t operator()(const ScheduleShape& s) const {
    return static_cast<std::size_t>(s.kind) + 8 * static_cast<std::size_t>(s.pp) +
           65536 * static_cast<std::size_t>(s.vpp) +
           16777216 * static_cast<std::size_t>(s.microbatches) + (s.pairs ? 4 : 0) +
           (s.whole_reductions ? 2 : 0);
  }
};
using Actions = std::vector<std::vector<Action>>;  // of each rank
using RunLengths = std::vector<std::vector<ActionRun>>;

struct CostModel::Memo {
  SharedMemo<DelayKey, BlockMemory, DelayHash> memory;
  SharedMemo<BlockShape, PersistentBytes, ShapeHash> states;
  SharedMemo<BlockShape, RankParameters, ShapeHash> parameters;
  SharedMemo<DelayKey, BlockDelays, DelayHash> compute_delays, state_delays;
  SharedMemo<PairKey, StreamDelay, PairHash> pair_delays;
  SharedMemo<PairKey, MemoryUse, PairHash> pair_memory;
  SharedMemo<DelayKey, BlockBusy, DelayHash> least, alone;
  SharedMemo<ScheduleShape, RunLengths, ScheduleHash> schedules;
  SharedMemo<ScheduleShape, Actions, ScheduleHash> actions;
  StepRatioMemo step_ratios;
};

// What is asked of many blocks is remembered.
inline CostContext remembering(CostContext context, StepRatioMemo& ratios) {
  context.step_ratios = &ratios;
  return context;
}

// Prices with some work free; remembers nothing.
class StagePricer {
 public:
  StagePricer(const ModelSpec& model, const Recipe& recipe, const CostContext& context)
      : model_(model), recipe_(recipe), context_(context) {}

  [[nodiscard]] BlockDelays delays(const BlockShape& shape, const std::vector<Part>& parts,
                                   FreeWork free) const {
    const Block block = build_block(model_, recipe_, shape);
    BlockDelays result;
    for (const Part part : parts) {
      const PricedPart priced = price_part(block, part, context_);
      result.add(part, delay_of(priced.ops,
                                free.bits == 0 ? priced.durations : without(priced, part, free)));
    }
    return result;
  }

 private:
  const ModelSpec& model_;
  const Recipe& recipe_;
  CostContext context_;
};

// The parts of a block that every microbatch runs.
inline std::vector<Part> compute_parts(BackwardForm form) {
  std::vector<Part> parts = {Part::forward};
  if (form != BackwardForm::whole) {
    parts.push_back(Part::backward_input);
    parts.push_back(Part::backward_weight);
  }
  if (form != BackwardForm::split) parts.push_back(Part::backward);
  return parts;
}

inline constexpr std::initializer_list<Axis> kModelAxes = {Axis::tp, Axis::cp, Axis::etp, Axis::ep};
inline constexpr std::initializer_list<Axis> kAllAxes = {
    Axis::tp,  Axis::cp,        Axis::etp,   Axis::ep,       Axis::dp_cp,
    Axis::edp, Axis::embedding, Axis::world, Axis::dp_shard, Axis::dp_replicate};

// All that the delays of a block depend on besides its shape and its graphs, as one number. Of the
// ranks' layout: the groups on these axes, the pace of the slowest of so many that meet so, and the
// pipeline, where it slows what a recipe's ranks do by themselves (that there is one, where its
// messages hold multiprocessors; that it leaves a node, where collectives wait for it). Of the job:
// the share of experts that have rows, and whether hooks run. Whatever else a price comes to read
// of its context belongs here: plans that have this and the shape in common have one price.
inline std::uint64_t facts_of(std::initializer_list<Axis> axes, const CostContext& context) {
  const HostWork& host = context.recipe->host;
  const GroupShape& pipeline = context.grid->shape(Axis::pp);
  const bool delayed = host.ring.has_value() && pipeline.nodes > 1;
  const bool waits = host.message_blocks > 0 && pipeline.size > 1;
  const bool hooks = context.zero > 0;
  std::uint64_t hash = groups_hash(*context.grid, axes);
  hash = hash_mix(hash, std::bit_cast<std::uint64_t>(
                            pace_of(*context.grid, context.hardware->gpu.speed_spread)));
  hash = hash_mix(hash, std::bit_cast<std::uint64_t>(context.active_experts));
  return hash_mix(hash, (delayed ? 1U : 0U) + (waits ? 2U : 0U) + (hooks ? 4U : 0U));
}
// Of forward and backward: the ranks' own groups, and from ZeRO-2 on those of the states too.
inline std::uint64_t compute_facts(const CostContext& context) {
  return context.zero >= 2 ? facts_of(kAllAxes, context) : facts_of(kModelAxes, context);
}

// A plan taken apart once, for the several questions asked about it.
struct CostModel::PlanView {
  const ParallelPlan* plan = nullptr;
  BlockShape base;
  StageList stages;
  ScheduleShape schedule;
  BackwardForm backward = BackwardForm::whole;
};

// A stage's pieces as the actions use them, the boundary's buffers included.
struct StageMoves {
  MemoryUse forward, backward, backward_input, backward_weight;
  MemoryUse reduce;  // in place

  [[nodiscard]] const MemoryUse& of(ActionKind kind) const {
    switch (kind) {
      case ActionKind::forward:
        return forward;
      case ActionKind::backward:
        return backward;
      case ActionKind::backward_input:
        return backward_input;
      case ActionKind::backward_weight:
        return backward_weight;
      case ActionKind::reduce:
        return reduce;
    }
    return forward;
  }
};

struct DistinctStage {
  StageMoves moves;
  std::vector<const BlockMemory*> blocks;  // of its runs, in order
  std::vector<const Slot*> shared;
  std::vector<int> holds;  // how often it holds each of the view's kinds of states
  Bytes on_host;           // of one microbatch, from forward to backward
  Bytes passing_host;      // ... and of the one block that runs

  void clear() {  // its vectors keep their memory
    moves = {};
    blocks.clear();
    shared.clear();
    holds.clear();
    on_host = passing_host = Bytes(0);
  }
};

// A block that was seen: all of it is remembered by `Memo` as well, for other threads.
struct SeenBlock {
  BlockShape shape;
  const BlockMemory* memory = nullptr;  // once somebody asked
  int states = -1;  // ... and the number of what it holds for the whole step; -1: nothing
  std::optional<BlockBusy> least;  // once somebody asked
};

// The runs of a plan's distinct stages, one after the other, as places in what was seen.
struct CostModel::SeenRuns {
  std::vector<SeenBlock>* blocks = nullptr;
  std::vector<int> places;
};

// What the compute words of a plan decide, per pipeline rank.
struct CostModel::MemoryView {
  ParallelPlan key;
  PlanView view;        // of `key`: it stays where it is
  SeenRuns runs;        // of the view's stages
  bool folded = false;  // the rest is there
  // Of each rank, what its actions hold at its peak: gradients that they made, gathered parameters,
  // and all the rest.
  std::vector<MemoryParts> parts;
  std::vector<Bytes> activations;
  std::vector<int> like;       // rank -> the first rank that holds the same stages
  std::vector<Bytes> buffers;  // of each rank that is the first of its kind
  std::vector<Bytes> sending;  // of each rank, for what it sends
  Bytes activations_on_host;   // of the rank that has most there at once
  std::vector<int> kinds;      // distinct holders of states, by the numbers of what was seen
  std::vector<int> counts;     // [rank][kind], of the first ranks
  std::optional<StepBound> bound;

  MemoryView() = default;
  MemoryView(const MemoryView&) = delete;
  MemoryView& operator=(const MemoryView&) = delete;
  void clear() {  // its vectors keep their memory
    runs.places.clear();
    folded = false;
    parts.clear();
    activations.clear();
    like.clear();
    buffers.clear();
    sending.clear();
    activations_on_host = Bytes(0);
    kinds.clear();
    counts.clear();
    bound.reset();
  }
  [[nodiscard]] int count(std::size_t rank, std::size_t kind) const {
    return counts[static_cast<std::size_t>(like[rank]) * kinds.size() + kind];
  }
};

// What one thread has seen, found again by less than a whole shape's hash.
struct CostModel::Seen {
  // Of plans that have their base in common, and all else that a block's delays depend on: they
  // differ in their schedule and in how many layers a stage has. A handful.
  using Blocks = std::vector<SeenBlock>;
  struct Held {
    PersistentBytes bytes;
    RankParameters parameters;
    bool shared = false;  // the embedding's own
  };

  std::array<std::unordered_map<DelayKey, Blocks, DelayHash>, 2> blocks;  // without pairs, and with
  std::unordered_map<BlockShape, int, ShapeHash> numbers;  // of state_shape()s, of blocks and bases
  std::vector<BlockShape> shapes;                          // ... in the order of their numbers
  std::unordered_map<std::uint64_t, Held> held;            // by the numbers of block and base

  // Room for the view that is folded.
  std::vector<DistinctStage> distinct;
  std::vector<StageMoves> uses;
  std::vector<int> stages_of;
  std::vector<const Slot*> shared;

  int number_of(const BlockShape& states) {
    const auto [it, added] = numbers.try_emplace(states, static_cast<int>(shapes.size()));
    if (added) shapes.push_back(states);
    return it->second;
  }
};

}  // namespace qplan
