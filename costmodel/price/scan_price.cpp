// Mamba-2's scan: kernels that work on all chunks side by side, and one that takes their states one
// after the other.

#include <algorithm>
#include <cmath>

#include "costmodel/price/price.h"
#include "models/error.h"

namespace qplan {

Price scan_price(const StateSpaceScan& work, const HardwareProfile& hardware) {
  if (work.batch <= 0 || work.seq_len <= 0 || work.heads <= 0) return {Seconds(), {}, 0};
  if (work.own) return own_recurrence_price(work, hardware);
  const ScanFit& fit = hardware.scan;
  const auto peak = hardware.gpu.matmul.find(Precision::bf16);
  QPLAN_CHECK(peak != hardware.gpu.matmul.end(), "every profile has a bf16 peak");
  const bool forward = work.pass == Pass::forward;
  const double efficiency = forward ? fit.efficiency : fit.backward_efficiency;
  const BytesPerSecond bandwidth =
      hardware.gpu.memory_bandwidth *
      (forward ? fit.bandwidth_efficiency : fit.backward_bandwidth_efficiency);
  const ScanParts parts = parts_of(work);
  const Seconds within = parts.flops / (peak->second * efficiency) + parts.traffic / bandwidth;
  const auto chunks = as_double(ceil_div(work.seq_len, work.chunk));
  const Seconds step = forward ? fit.chunk : fit.backward_chunk;
  const Seconds between = std::max(step * chunks, parts.passing_traffic / bandwidth);
  return {within + between, fit.assumed ? PriceSource::assumed : PriceSource::formula, fit.error};
}

}  // namespace qplan
