// The gated delta rule: products within chunks, side by side, and the chunks' states, one after the
// other.

#include <algorithm>
#include <cmath>

#include "costmodel/price/price.h"
#include "models/error.h"

namespace qplan {

Price delta_rule_price(const GatedDeltaRule& work, const HardwareProfile& hardware) {
  if (work.batch <= 0 || work.seq_len <= 0 || work.value_heads <= 0) return {Seconds(), {}, 0};
  if (work.own) return own_recurrence_price(work, hardware);
  const DeltaRuleFit& fit = hardware.delta_rule;
  const auto peak = hardware.gpu.matmul.find(Precision::bf16);
  QPLAN_CHECK(peak != hardware.gpu.matmul.end(), "every profile has a bf16 peak");
  const DeltaRuleParts parts = parts_of(work);
  const BytesPerSecond bandwidth = hardware.gpu.memory_bandwidth * fit.bandwidth_efficiency;
  const Seconds within = overlapped(parts.within_flops / (peak->second * fit.efficiency),
                                    parts.within_traffic / bandwidth);
  const auto chunks = as_double(ceil_div(work.seq_len, work.chunk));
  const double blocks = static_cast<double>(work.batch * work.value_heads) * fit.blocks_per_head;
  const double waves = std::ceil(blocks / hardware.gpu.multiprocessors);
  const Seconds step = work.pass == Pass::forward ? fit.chunk : fit.backward_chunk;
  const Seconds between = std::max(step * (chunks * waves), parts.between_traffic / bandwidth);
  const Seconds time = within + between;
  return {time, fit.assumed ? PriceSource::assumed : PriceSource::formula, fit.error};
}

}  // namespace qplan
