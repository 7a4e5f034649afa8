#pragma once
// What our own executor sets aside for its kernels: predicted and taken.

#include <cstdint>

namespace qplan {

// Bytes that a kernel may fill between its two launches; one array, of the stream that computes.
inline constexpr std::int64_t kKernelScratch = 64 << 20;
// ... of it for each row of a table whose gradient tokens add up.
inline constexpr std::int64_t kTableRowScratch = 8;

}  // namespace qplan
