// Our executor's kernels of the delta rule and the scan (kernels/delta_rule.cu, kernels/scan.cu):
// products of all chunks side by side, and blocks that walk from chunk to chunk with columns of a
// head's state. A walk takes as long with few blocks as with one for each multiprocessor, or, where
// a chunk waits for memory more than for products, with a little more.

#include <algorithm>
#include <cmath>

#include "costmodel/price/price.h"
#include "models/error.h"

namespace qplan {
namespace {

// Share of the tensor cores' peak, seconds of a walk for each chunk, and what each of many blocks
// on one multiprocessor adds to that. Fitted to medians of 100 launches on an H200 (2026-11-28):
// 4,096 and 8,192 tokens, four sequences of 2,048, 8 and 32 value heads, 16 to 128 heads of scans,
// within 6.4% of each (docs/evidence/archive/executor-recurrences-2026-11-28.md).
struct Fit {
  double efficiency, chunk, each;
};
constexpr Fit kDelta{0.082, 2.73e-6, 1}, kDeltaBackward{0.098, 6.3e-6, 1};
constexpr Fit kScan{0.106, 1.55e-6, 0.4}, kScanBackward{0.13, 1.87e-6, 0.75};
constexpr double kGaps = 20e-6;  // between the kernels of a work, and where they begin and end
constexpr double kDeltaColumns = 32, kScanColumns = 64;  // of a state that a block has
constexpr double kError = 0.2;

Price price_of(Flops products, const Fit& fit, double blocks, double chunks, Bytes traffic,
               const HardwareProfile& hardware) {
  const auto peak = hardware.gpu.matmul.find(Precision::bf16);
  QPLAN_CHECK(peak != hardware.gpu.matmul.end(), "every profile has a bf16 peak");
  const double many = std::max(1.0, fit.each * blocks / hardware.gpu.multiprocessors);
  const Seconds time =
      products / (peak->second * fit.efficiency) + Seconds(kGaps + chunks * fit.chunk * many);
  // Hopper's multiprocessors are one kind.
  const bool measured = hardware.gpu.compute_capability == 90;
  return {std::max(time, traffic / hardware.gpu.memory_bandwidth),
          measured ? PriceSource::formula : PriceSource::assumed, kError};
}

template <class W>
double chunks_of(const W& work) {
  return as_double(ceil_div(work.seq_len, work.chunk));
}

}  // namespace

Price own_recurrence_price(const GatedDeltaRule& work, const HardwareProfile& hardware) {
  const DeltaRuleParts parts = parts_of(work);
  const double blocks = as_double(work.batch * work.value_heads) *
                        std::ceil(as_double(work.value_dim) / kDeltaColumns);
  return price_of(parts.within_flops, work.pass == Pass::forward ? kDelta : kDeltaBackward, blocks,
                  chunks_of(work), parts.within_traffic + parts.between_traffic, hardware);
}

// Backward the state and its gradient walk at once.
Price own_recurrence_price(const StateSpaceScan& work, const HardwareProfile& hardware) {
  const bool forward = work.pass == Pass::forward;
  const double blocks = as_double(work.batch * work.heads) *
                        std::ceil(as_double(work.state_size) / kScanColumns) * (forward ? 1 : 2);
  const ScanParts parts = parts_of(work);
  return price_of(parts.flops, forward ? kScan : kScanBackward, blocks, chunks_of(work),
                  parts.traffic, hardware);
}

}  // namespace qplan
