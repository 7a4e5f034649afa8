#pragma once
// What kernels need besides their operands; what is set aside for it is models/kernel_scratch.h's.

#include <cstdint>

namespace qplan::kernels {

// Scratch memory that one kernel needs between its two launches: of the stream it runs on.
inline constexpr std::int64_t kScratchBytes = 64 << 20;

}  // namespace qplan::kernels
