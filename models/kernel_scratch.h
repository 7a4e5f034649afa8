#pragma once
// What our own executor sets aside for its kernels: predicted and taken.

#include <cstdint>

namespace qplan {

// Bytes that a kernel may fill between its two launches; one array, of the stream that computes.
inline constexpr std::int64_t kKernelScratch = 64 << 20;
// ... of it for each token of a micro-batch that a table's gradient adds up, and for their sort.
inline constexpr std::int64_t kTokenScratch = 24, kSortScratch = 2 << 20;

}  // namespace qplan
