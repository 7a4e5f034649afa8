// Our executor's kernels of the delta rule and the scan, which go token by token
// (kernels/recurrence.cuh): a block walks a sequence with 32 rows of a head's state. With few
// blocks a token takes what its sums wait for; with many what their instructions take together.

#include <algorithm>
#include <cmath>

#include "costmodel/price/price.h"
#include "models/portable_math.h"

namespace qplan {
namespace {

// Seconds a token for each reading of the state or addition to it, of rows of 128 numbers: of a
// block that has its multiprocessor alone, and of each of many. Measured on an H200 (2026-11-28):
// steps of Qwen3.5-9B's, Qwen3-Next's, Nemotron-H-8B's and Nemotron-3-Nano's layers, 4,096 and
// 8,192 tokens of one sequence and 2,048 of four; the sum of cubes is within 12% of each
// (docs/evidence/executor.md).
struct Pace {
  double alone, together;
};
constexpr Pace kDelta{1.08e-7, 5.8e-8}, kDeltaBackward{1.5e-7, 9e-8};
constexpr Pace kScan{2e-7, 9.05e-8}, kScanGradient{1e-7, 1.24e-7};
constexpr double kRowsOfBlock = 32, kWhole = 128;
constexpr double kError = 0.2;

struct Walks {
  double heads = 0;           // of all sequences
  double rows = 0, cols = 0;  // of a state
  double passes = 0;          // of readings and additions, all ways
  double ways = 1;            // along a sequence at once
};

Seconds time_of(const Walks& w, Pace pace, std::int64_t tokens, const HardwareProfile& hardware) {
  const double blocks = w.heads * std::ceil(w.rows / kRowsOfBlock) * w.ways;
  const double on_one = std::ceil(blocks / hardware.gpu.multiprocessors);
  const double together = pace.together * on_one * w.cols / kWhole;
  const auto cube = [](double x) { return x * x * x; };
  const double one = portable::pow(cube(pace.alone) + cube(together), 1.0 / 3);
  return Seconds(w.passes / w.ways * one * as_double(tokens));
}

Price price_of(Seconds walks, Bytes traffic, const HardwareProfile& hardware) {
  // Hopper's multiprocessors are one kind.
  const bool measured = hardware.gpu.compute_capability == 90;
  return {std::max(walks, traffic / hardware.gpu.memory_bandwidth),
          measured ? PriceSource::formula : PriceSource::assumed, kError};
}

}  // namespace

Price state_walk_price(const GatedDeltaRule& work, const HardwareProfile& hardware) {
  const double heads = as_double(work.batch * work.value_heads);
  const double k = as_double(work.key_dim), v = as_double(work.value_dim);
  Seconds time = time_of({heads, v, k, 3}, kDelta, work.seq_len, hardware);
  if (work.pass == Pass::backward) {
    time = time_of({heads, v, k, 5, 2}, kDeltaBackward, work.seq_len, hardware) +
           time_of({heads, k, v, 6, 2}, kDeltaBackward, work.seq_len, hardware);
  }
  return price_of(time, parts_of(work).between_traffic, hardware);
}

Price state_walk_price(const StateSpaceScan& work, const HardwareProfile& hardware) {
  const double heads = as_double(work.batch * work.heads);
  const double d = as_double(work.head_dim), n = as_double(work.state_size);
  Seconds time = time_of({heads, d, n, 2}, kScan, work.seq_len, hardware);
  if (work.pass == Pass::backward) {
    time = time_of({heads, n, d, 4, 2}, kScanGradient, work.seq_len, hardware) + time;
  }
  return price_of(time, parts_of(work).traffic, hardware);
}

}  // namespace qplan
