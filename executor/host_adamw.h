#pragma once
// AdamW on the host for what a GPU's optimizer leaves there: the device's arithmetic (fp32, as
// kernels::adamw), as wide as the processor's vectors.

#include <cstddef>
#include <cstdint>

#include "executor/math/optimizer.h"

namespace qplan {

// n elements each; `working` are bf16 bits of the new parameters. No two arrays overlap.
struct HostAdamW {
  const float* gradient;
  float *main, *moment1, *moment2;
  std::uint16_t* working;
  std::size_t n;
};

// Step `step` (from 1); gradients are multiplied by `scale` first (clipping).
void host_adamw(const math::AdamWSettings& settings, std::int64_t step, double scale,
                const HostAdamW& arrays);

}  // namespace qplan
