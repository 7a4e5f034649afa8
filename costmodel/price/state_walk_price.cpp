// Our executor's kernels of the delta rule and the scan, which go token by token
// (kernels/recurrence.cuh): a block walks a sequence with 32 rows of a head's state. With few
// blocks a token takes what its sums wait for; with many what their instructions take together.

#include <algorithm>
#include <cmath>

#include "costmodel/price/price.h"

namespace qplan {
namespace {

// Seconds a token: of a block alone on its multiprocessor, and of each of many, of rows of 128
// numbers, for each reading of the state or addition to it.
constexpr double kAlone = 6e-8, kTogether = 4e-8;
constexpr double kRowsOfBlock = 32, kWhole = 128;
constexpr double kError = 0.3;  // assumed on other GPUs

struct Walks {
  double heads = 0;           // of all sequences
  double rows = 0, cols = 0;  // of a state
  double passes = 0;          // of readings and additions, all ways
  double ways = 1;            // along a sequence at once
};

Seconds time_of(const Walks& w, std::int64_t tokens, const HardwareProfile& hardware) {
  const double blocks = w.heads * std::ceil(w.rows / kRowsOfBlock) * w.ways;
  const double on_one = std::ceil(blocks / hardware.gpu.multiprocessors);
  const double passes = w.passes / w.ways;
  const double token = passes * std::max(kAlone, kTogether * on_one * w.cols / kWhole);
  return Seconds(token * as_double(tokens));
}

Price price_of(Seconds walks, Bytes traffic, const HardwareProfile& hardware) {
  return {std::max(walks, traffic / hardware.gpu.memory_bandwidth), PriceSource::assumed, kError};
}

}  // namespace

Price state_walk_price(const GatedDeltaRule& work, const HardwareProfile& hardware) {
  const double heads = as_double(work.batch * work.value_heads);
  const double k = as_double(work.key_dim), v = as_double(work.value_dim);
  Seconds time = time_of({heads, v, k, 3}, work.seq_len, hardware);
  if (work.pass == Pass::backward) {
    time = time_of({heads, v, k, 5, 2}, work.seq_len, hardware) +
           time_of({heads, k, v, 6, 2}, work.seq_len, hardware);
  }
  return price_of(time, parts_of(work).between_traffic, hardware);
}

Price state_walk_price(const StateSpaceScan& work, const HardwareProfile& hardware) {
  const double heads = as_double(work.batch * work.heads);
  const double d = as_double(work.head_dim), n = as_double(work.state_size);
  Seconds time = time_of({heads, d, n, 2}, work.seq_len, hardware);
  if (work.pass == Pass::backward) {
    time = time_of({heads, n, d, 4, 2}, work.seq_len, hardware) + time;
  }
  return price_of(time, parts_of(work).traffic, hardware);
}

}  // namespace qplan
