#pragma once
// What the memory model knows of the kernels, without CUDA's headers.

#include <cstdint>

namespace qplan::kernels {

// Scratch memory that one kernel needs between its two launches: of the stream it runs on.
inline constexpr std::int64_t kScratchBytes = 64 << 20;

}  // namespace qplan::kernels
