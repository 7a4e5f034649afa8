#pragma once
// When each slot of a block is alive, in program order: the one place that knows allocation.

#include <cstdint>
#include <vector>

#include "models/program/block.h"

namespace qplan {

// Slots that become alive, or are freed, just before op `at` of a list (at == size: after the
// last). Frees come before allocations at the same place.
struct LiveEvent {
  std::int32_t at = 0;
  SlotId slot = kNoSlot;
  bool allocate = false;
};

// Events of consecutive lists of one block (forward, backward; or forward, backward_input,
// backward_weight), each ordered by `at`, frees first.
//
// Buffers belong to the compute stream. A slot is freed at the first op there that has waited,
// directly or through other streams, for all its readers; where the list holds no such op, at the
// list's end. A slot that a later list reads before writing it is kept.
std::vector<std::vector<LiveEvent>> liveness(const Block& block,
                                             const std::vector<const OpList*>& lists);

// Net change and peak of a piece of program, both relative to what is held when it begins.
struct MemoryUse {
  Bytes net, peak;
  bool operator==(const MemoryUse&) const = default;
};

// Two pieces in sequence. Associative, so repetition is a power.
constexpr MemoryUse then(MemoryUse a, MemoryUse b) {
  const Bytes tail = a.net + b.peak;
  return {a.net + b.net, a.peak > tail ? a.peak : tail};
}

// `n` times in sequence. The peak of a repeated piece lies in its first or in its last copy.
constexpr MemoryUse power(MemoryUse a, std::int64_t n) {
  if (n <= 0) return {};
  const double before_last = static_cast<double>(n - 1);
  const Bytes last = a.net * before_last + a.peak;
  return {a.net * static_cast<double>(n), a.peak > last ? a.peak : last};
}

MemoryUse memory_use(const Block& block, const std::vector<LiveEvent>& events);

}  // namespace qplan
