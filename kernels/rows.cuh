#pragma once
// What kernels over rows share: sums over a row's threads, and sums over rows that blocks leave.

#include "kernels/device.cuh"
#include "kernels/draw.cuh"

namespace qplan::kernels {

// Pieces of rows that a block of a backward kernel walks: two by its own index, and then those that
// it draws. Collectives and messages hold multiprocessors, and a block that finds no place begins
// when others have ended: with an equal share for each block that doubles the time, here the others
// have drawn the rest. Two turns of the block's rows a piece; a barrier of the block in each turn.
// kNoDraw: pieces a grid apart, so that a block adds up the same rows in every run.
class DrawnPieces {
 public:
  static constexpr int kTurns = 2;
  __device__ DrawnPieces(int which_draw, int* shared) : which_draw_(which_draw), told_(shared) {
    following_ = static_cast<int>(blockIdx.x + gridDim.x);
    ask();
  }
  // Before the barrier of the piece's last turn: which one follows.
  __device__ std::int64_t next() {
    if (threadIdx.x == 0) *told_ = asked_;
    return following_;
  }
  // Before the barrier of a later piece's first turn.
  __device__ void look_ahead() {
    following_ = *told_;
    ask();
  }
  __device__ void end() {
    if (threadIdx.x != 0 || which_draw_ == kNoDraw) return;
    __threadfence();  // what was asked for last has been counted
    end_drawing(draws[which_draw_]);
  }

 private:
  // Thread 0, a turn before it tells the others.
  __device__ void ask() {
    if (threadIdx.x != 0) return;
    const int grid = static_cast<int>(gridDim.x);
    if (which_draw_ != kNoDraw) {
      asked_ = 2 * grid + draw_next(draws[which_draw_]);
    } else {
      asked_ = asked_ == 0 ? following_ + grid : asked_ + grid;
    }
  }
  int which_draw_;
  int* told_;
  int following_ = 0, asked_ = 0;
};

// Where row r lies.
__device__ inline std::int64_t place(std::int64_t r, Lines lines, std::int64_t cols) {
  return r / lines.heads * lines.stride + r % lines.heads * (lines.step > 0 ? lines.step : cols);
}

// The sum over the threads of a row: a part of a warp, a warp, or a block.
template <int Row>
__device__ float row_sum(float x) {
  if constexpr (Row > kWarp) {
    return block_sum<Row>(x);
  } else {
#pragma unroll
    for (int step = Row / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
    return x;
  }
}

// Two sums over the threads of a row at once. `parity` alternates: what a slow warp still reads is
// not what a fast one writes next.
template <int Row>
__device__ float2 row_sums(float2 x, int parity) {
  constexpr int kLanes = Row < kWarp ? Row : kWarp;
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    x.x += __shfl_xor_sync(0xffffffffU, x.x, step);
    x.y += __shfl_xor_sync(0xffffffffU, x.y, step);
  }
  if constexpr (Row > kWarp) {
    __shared__ float2 parts[2][Row / kWarp];
    if (threadIdx.x % kWarp == 0) parts[parity][threadIdx.x / kWarp] = x;
    __syncthreads();
    x = {0, 0};
#pragma unroll
    for (int i = 0; i < Row / kWarp; ++i) {
      x.x += parts[parity][i].x;
      x.y += parts[parity][i].y;
    }
  }
  return x;
}

// Of an H100; on others blocks that walk rows take more turns, or fewer.
inline constexpr std::int64_t kMultiprocessors = 132;
// Threads that walk heads at once, as the registers of their kernels leave them: 78, and 122 of
// those with several vectors a thread.
inline constexpr std::int64_t kBackwardThreads = kMultiprocessors * 768,
                              kWideBackwardThreads = kMultiprocessors * 512;

// Threads of a row, vectors of a thread, threads of a block, and blocks that a multiprocessor holds
// of a kernel that walks rows: what its registers leave.
template <int Row, int Vectors, int Threads, int Blocks = 1>
struct Shape {
  static constexpr int kRow = Row, kVectors = Vectors, kThreads = Threads, kBlocks = Blocks;
};
// Calls launch(a shape) with its numbers as constants. Of rows as long as heads:
template <class Launch>
void with_head_shape(std::int64_t cols, Launch launch) {
  if (cols <= 64) return launch(Shape<8, 1, 256, 2>{});
  if (cols <= 128) return launch(Shape<16, 1, 256, 2>{});
  launch(Shape<32, 1, 256, 2>{});
}
// Of rows that take a block each: few threads with several vectors, so that reads are under way
// together, a sum is soon done and hardly a thread is idle; of the shapes tried on an H200 the
// fastest at each length (docs/evidence/archive/kernels-2026-11-30.md).
template <class Launch>
void with_block_shape(std::int64_t cols, Launch launch) {
  if (cols <= 512) return launch(Shape<64, 1, 64>{});
  if (cols <= 1024) return launch(Shape<64, 2, 64>{});
  if (cols <= 2048) return launch(Shape<128, 2, 128>{});
  if (cols <= 3072) return launch(Shape<128, 3, 128>{});
  if (cols <= 4096) return launch(Shape<256, 2, 256>{});
  if (cols <= 5120) return launch(Shape<128, 5, 128>{});
  if (cols <= 6144) return launch(Shape<128, 6, 128>{});
  if (cols <= 7168) return launch(Shape<128, 7, 128>{});
  if (cols <= 8192) return launch(Shape<128, 8, 128>{});
  if (cols <= 12288) return launch(Shape<256, 6, 256>{});
  launch(Shape<256, 8, 256>{});
}
// dw[c] += the sum over `count` blocks of parts[:, c], rows of `stride` numbers.
void add_parts(float* dw, const float* parts, std::int64_t count, std::int64_t cols,
               std::int64_t stride, cudaStream_t stream);

}  // namespace qplan::kernels
