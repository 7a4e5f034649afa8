#pragma once
// The peak that a plan's model FLOPs are a share of.

#include "costmodel/profiles/hardware.h"

namespace qplan {

struct PeakRate {
  Precision format = Precision::bf16;
  FlopsPerSecond rate;
};

// Of matrix products in `precision`; of the first format that the GPU states (bf16's) where it
// states none for it.
inline PeakRate peak_rate(const Gpu& gpu, Precision precision) {
  const auto own = gpu.matmul.find(precision);
  const auto& [format, rate] = own != gpu.matmul.end() ? *own : *gpu.matmul.begin();
  return {format, rate};
}

}  // namespace qplan
