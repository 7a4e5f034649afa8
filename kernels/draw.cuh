#pragma once
// Pieces of a launch's work that its blocks draw, one after the other: blocks that wait for a
// multiprocessor leave theirs to others.

#include <cuda_runtime_api.h>

#include <atomic>

#include "kernels/kernels.h"

namespace qplan::kernels {
namespace {

// All zero between launches.
struct Draw {
  int next, ended;
};
constexpr int kDraws = 64;  // launches take them in turn: more than run at once
[[maybe_unused]] __device__ Draw draws[kDraws];

// Which of them the next launch draws from.
int new_draw() {
  static std::atomic<unsigned> launches{0};
  return static_cast<int>(launches++ % kDraws);
}

// ... or none: its blocks' pieces are fixed.
constexpr int kNoDraw = -1;
int draw_of(RowOrder order) {
  return order == RowOrder::fixed ? kNoDraw : new_draw();
}

// The next piece's index, from 0 on.
[[maybe_unused]] __device__ inline int draw_next(Draw& draw) {
  return atomicAdd(&draw.next, 1);
}

// By one thread of each block, once it has drawn for the last time. The last of all leaves the draw
// as it was.
[[maybe_unused]] __device__ inline void end_drawing(Draw& draw) {
  if (atomicAdd(&draw.ended, 1) + 1 < static_cast<int>(gridDim.x)) return;
  draw.next = 0;
  draw.ended = 0;
}

}  // namespace
}  // namespace qplan::kernels
