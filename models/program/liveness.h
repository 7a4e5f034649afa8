#pragma once
// When each slot of a block is alive, in program order: the one place that knows allocation.

#include <cstdint>
#include <vector>

#include "models/program/block.h"
#include "models/program/schedule.h"

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

// The same for all lists of a step, in the order they run; backward whole, in its two halves, or in
// either form (what backward reads is the same, so the other lists are too).
struct StepLiveness {
  std::vector<LiveEvent> forward, backward, backward_input, backward_weight, norm, update;
};
StepLiveness step_liveness(const Block& block, BackwardForm form);

// What of a change or a peak is told apart: gradients that a step makes anew, and parameters that
// were gathered for a block.
struct MemoryParts {
  Bytes gradients{}, gathered{};
  bool operator==(const MemoryParts&) const = default;
  friend constexpr MemoryParts operator+(MemoryParts a, MemoryParts b) {
    return {a.gradients + b.gradients, a.gathered + b.gathered};
  }
  friend constexpr MemoryParts operator*(MemoryParts a, double times) {
    return {a.gradients * times, a.gathered * times};
  }
};

// Net change and peak of a piece of program, both relative to what is held when it begins; and the
// parts of the one and of the other (the earliest of equal peaks).
struct MemoryUse {
  Bytes net, peak;
  MemoryParts parts{}, at_peak{};
  bool operator==(const MemoryUse&) const = default;
};

// Two pieces in sequence. Associative, so repetition is a power.
constexpr MemoryUse then(MemoryUse a, MemoryUse b) {
  const Bytes tail = a.net + b.peak;
  const bool later = tail > a.peak;
  return {a.net + b.net, later ? tail : a.peak, a.parts + b.parts,
          later ? a.parts + b.at_peak : a.at_peak};
}

// `n` times in sequence. The peak of a repeated piece lies in its first or in its last copy.
constexpr MemoryUse power(MemoryUse a, std::int64_t n) {
  if (n <= 0) return {};
  const double before_last = static_cast<double>(n - 1);
  const Bytes last = a.net * before_last + a.peak;
  const bool later = last > a.peak;
  return {a.net * static_cast<double>(n), later ? last : a.peak, a.parts * static_cast<double>(n),
          later ? a.parts * before_last + a.at_peak : a.at_peak};
}

MemoryUse memory_use(const Block& block, const std::vector<LiveEvent>& events);

}  // namespace qplan
