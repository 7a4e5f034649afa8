#pragma once
// The grid of matrix products that calibration measures and its table is made of.

#include <cstdint>

#include "models/dtype.h"

namespace qplan {

// Tokens of a rank; widths of layers and, at the end, of a vocabulary. Powers of two: utilisation
// is interpolated in their logarithms.
inline constexpr std::int64_t kRows[] = {1024, 2048, 4096, 8192, 16384, 32768};
inline constexpr std::int64_t kWidths[] = {512, 1024, 2048, 4096, 8192, 16384, 32768, 131072};
inline constexpr std::int64_t kDepths[] = {512, 1024, 2048, 4096, 8192, 16384, 32768};
// Formats of products. Those over a vocabulary run in bf16.
inline constexpr DType kFormats[] = {DType::bf16, DType::fp8};

}  // namespace qplan
