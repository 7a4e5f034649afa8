#pragma once
// AdamW on the host for what a GPU's optimizer leaves there: the device's arithmetic (fp32, as
// kernels::adamw), as wide as the processor's vectors.

#include <cstddef>
#include <cstdint>
#include <span>

#include "executor/math/optimizer.h"

namespace qplan {

// n elements each; `working` are bf16 bits of the new parameters. No two arrays overlap. Without
// `decayed` the settings' weight decay is none of theirs.
struct HostAdamW {
  const float* gradient;
  float *main, *moment1, *moment2;
  std::uint16_t* working;
  std::size_t n;
  bool decayed = true;
};

// Step `step` (from 1); gradients are multiplied by `scale` first (clipping).
void host_adamw(const math::AdamWSettings& settings, std::int64_t step, double scale,
                const HostAdamW& arrays);

// The same of all `runs`, on `threads` threads: each has an equal share of their elements, however
// many runs there are. (Experts with biases are hundreds of runs.)
void host_adamw(const math::AdamWSettings& settings, std::int64_t step, double scale,
                std::span<const HostAdamW> runs, std::int64_t threads);

}  // namespace qplan
