#pragma once
// A block priced: what each of its parts does to memory and to the clocks. price -> stretch ->
// fold.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "costmodel/fold/streams.h"
#include "costmodel/price/price.h"
#include "models/program/liveness.h"
#include "models/program/step_program.h"

namespace qplan {

// Kinds of work that the breakdown tells apart (docs/reference/contract.md 4, `time`).
enum class Cost : std::uint8_t {
  compute,
  recompute,
  tp,
  cp,
  ep,
  p2p,
  dp,
  optimizer,
  offload,
  host
};
inline constexpr int kCostCount = 10;
Cost cost_of(const Op& op, Part part);

// Kinds of work that are priced at zero, to see what the step would take without them.
struct FreeWork {
  std::uint16_t bits = 0;
  [[nodiscard]] bool has(Cost c) const { return (bits >> static_cast<unsigned>(c)) & 1U; }
  FreeWork& add(Cost c) {
    bits = static_cast<std::uint16_t>(bits | (1U << static_cast<unsigned>(c)));
    return *this;
  }
};

// What pricing needs besides the op.
struct CostContext {
  const HardwareProfile* hardware = nullptr;
  const RankGrid* grid = nullptr;
  const Recipe* recipe = nullptr;
  std::optional<CudaGraphScope> graphs;  // launches inside them cost nothing
  double active_experts = 1;             // share of a grouped product's groups that have rows
  int zero = 0;                          // stage: what hooks the launching thread runs
  StepRatioMemo* step_ratios = nullptr;  // PriceContext's
};

// A plan's. Machine, grid and recipe must outlive it.
CostContext context_of(const ParallelPlan& plan, const HardwareProfile& hardware,
                       const RankGrid& grid, const Recipe& recipe, const JobFacts& facts);

// Of one op, alone: its work's price, less what a CUDA graph saves.
Price price_of(const Op& op, const CostContext& context);

// One part of a block with the duration of every op, contention included.
struct PricedPart {
  OpList ops;
  std::vector<Duration> durations;
  std::vector<Price> prices;  // alone, before stretching
};
PricedPart price_ops(OpList ops, const CostContext& context);
PricedPart price_part(const Block& block, Part part, const CostContext& context);
// The forward of one microbatch beside the backward of another.
PricedPart price_pair(const Block& forward, const Block& backward, const CostContext& context);

// The same durations with some kinds of work free; contention stays as it was.
std::vector<Duration> without(const PricedPart& priced, Part part, FreeWork free);

StreamDelay delay_of(const OpList& ops, const std::vector<Duration>& durations);

// What the ops take on the compute stream at least: nothing is slowed by what runs beside it, and
// all that moves states takes no time (gathers, reductions, copies to and from the host). Never
// more than their delay says.
Seconds least_compute(const OpList& ops, const CostContext& context);

// What a block does to memory: forward, backward and its two halves (those that `form` runs), and
// the step's end (gradient norm and update), which only frees.
struct BlockMemory {
  MemoryUse forward, backward, backward_input, backward_weight, end;
  std::vector<Slot> shared;  // held once per distinct shape on a rank
  Bytes on_host;             // of one microbatch, from forward to backward
  Bytes passing_host;        // the most that is there while the block runs, and gone behind it
  Bytes staying;             // that only the end of the whole stage's backward frees
};
BlockMemory memory_of(const Block& block, BackwardForm form);

// What a collective and the compute beside it do to each other; `alone` is its price. A ring around
// several nodes passes NVLink on its way, and is no faster than what it gets there.
Slowdown slowdown_of(const Op& op, Seconds alone, const CostContext& context);

// Stretches ops that run beside work of another kind: compute beside collectives and the reverse,
// by how much each op on a comm stream slows compute and is slowed itself, on the part of each that
// overlaps in steady repetition.
void stretch(const OpList& ops, std::vector<Duration>& durations,
             const std::vector<Slowdown>& slowdowns);

// Share of the experts that get tokens: of all, unless the router is free to leave some out.
double routed_share(const ParallelPlan& plan, const JobFacts& facts);

// The scope of a plan's CUDA graphs, where it has any.
std::optional<CudaGraphScope> graphs_of(const ParallelPlan& plan);

// Host time of enqueuing an op, by the recipe, on a DGX H100's processors: of each of its kernels,
// or of its module and less of its further kernels; of an expert's product and of its operand's
// cast (Transformer Engine's GroupedLinear enqueues them one after the other).
Seconds launch_time(const Op& op, const Recipe& recipe);

// ... and what hooks of ZeRO's stage add to it.
Seconds hook_time(const Op& op, const Recipe& recipe, int zero);

}  // namespace qplan
