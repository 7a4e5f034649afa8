#pragma once
// What a piece of work costs on a machine: measured table first, closed form second, and it says
// which.

#include "costmodel/profiles/hardware.h"
#include "models/program/op.h"
#include "models/rank_grid.h"

namespace qplan {

class StepRatioMemo;

enum class PriceSource : std::uint8_t { table, formula, assumed };

struct Price {
  Seconds time;  // on its stream, alone
  PriceSource source = PriceSource::formula;
  double error = 0.1;  // relative, one sigma
};

// Where a work runs: the machine, the ranks' layout and the precision of matrix products.
struct PriceContext {
  const HardwareProfile* hardware = nullptr;
  const RankGrid* grid = nullptr;
  StepRatioMemo* step_ratios = nullptr;  // that machine's, where somebody remembers them
};

Price price(const Work& work, const PriceContext& context);

// The parts, each testable alone.
Price gemm_price(const Gemm& work, const HardwareProfile& hardware);
Price grouped_gemm_price(const GroupedGemm& work, const HardwareProfile& hardware);
Price attention_price(const Attention& work, const HardwareProfile& hardware);
Price delta_rule_price(const GatedDeltaRule& work, const HardwareProfile& hardware);
Price scan_price(const StateSpaceScan& work, const HardwareProfile& hardware);
// Of both by our executor's kernels.
Price own_recurrence_price(const GatedDeltaRule& work, const HardwareProfile& hardware);
Price own_recurrence_price(const StateSpaceScan& work, const HardwareProfile& hardware);
Price rowwise_price(const Rowwise& work, const HardwareProfile& hardware);
Price collective_price(const Collective& work, const GroupShape& group,
                       const HardwareProfile& hardware);
// What NVLink takes for its hops of a ring around several nodes, alone and without the ring's
// start: every rank but a node's last hands on all but its own share. Nothing where a node has one
// rank.
Seconds ring_in_nodes(const Collective& work, const GroupShape& group,
                      const HardwareProfile& hardware);
// One message of `bytes`; `crosses_nodes` picks the NIC. `pod_load` is PodLoad::edge of it and all
// that go beside it.
Price send_recv_price(Bytes bytes, bool crosses_nodes, const HardwareProfile& hardware,
                      double pod_load = 0);

// (a^4 + b^4)^(1/4): the larger of two overlapped times, with a round corner.
Seconds overlapped(Seconds a, Seconds b);

// Bytes each rank must move per byte of full buffer, for any algorithm (nccl-tests,
// PERFORMANCE.md).
double bus_factor(CollectiveKind kind, int ranks);

}  // namespace qplan
