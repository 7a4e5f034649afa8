#pragma once
// CUDA's device language for the host's compiler, so that kernels run where no GPU is: the threads
// of a block are fibers that take turns, one block after the other. It shows wrong indices,
// operands and sums; races, and what only the hardware's order gives, it does not show.

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

namespace qplan::emulated {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
extern Index thread, block, block_size, grid_size;

constexpr unsigned kWarpSize = 32, kMostThreads = 1024;

// The running thread's number in its block.
unsigned number();
// Until all threads of the block that have not ended are here.
void barrier();
// Lets every other thread come to its next turn or barrier.
void take_turns();

// What `mine` of another thread of the warp is. All of the warp call it.
template <class T>
T exchange(T mine, unsigned other) {
  static T mailbox[kMostThreads];
  mailbox[number()] = mine;
  take_turns();
  const T theirs = mailbox[other];
  take_turns();
  return theirs;
}
inline unsigned first_of_warp() {
  return number() / kWarpSize * kWarpSize;
}
// Bit i: what lane i says. All of the warp call it.
unsigned ballot(bool mine);
bool any_of_block(bool mine);

// kernel<<<grid, threads, shared, stream>>>(...) once scripts/host_kernels.py has rewritten it.
class Launch {
 public:
  Launch(dim3 grid, dim3 threads, std::size_t = 0, cudaStream_t = nullptr)
      : grid_(grid), threads_(threads) {}
  void operator()(const std::function<void()>& kernel) const;

 private:
  dim3 grid_, threads_;
};

}  // namespace qplan::emulated

#undef __global__
#undef __device__
#undef __host__
#undef __launch_bounds__
#undef __grid_constant__
#undef __shared__
#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static  // blocks run one after the other
#define threadIdx qplan::emulated::thread
#define blockIdx qplan::emulated::block
#define blockDim qplan::emulated::block_size
#define gridDim qplan::emulated::grid_size

inline void __syncthreads() {
  qplan::emulated::barrier();
}
inline void __threadfence() {}
inline void __syncwarp(unsigned = 0) {
  qplan::emulated::take_turns();
}
inline int __syncthreads_or(int mine) {
  return qplan::emulated::any_of_block(mine != 0) ? 1 : 0;
}
template <class T>
T __shfl_xor_sync(unsigned, T mine, int step) {
  return qplan::emulated::exchange(mine, qplan::emulated::number() ^ static_cast<unsigned>(step));
}
template <class T>
T __shfl_sync(unsigned, T mine, int lane, int width = 32) {
  const auto group = static_cast<unsigned>(width);
  const unsigned own = qplan::emulated::number();
  return qplan::emulated::exchange(mine, own / group * group + static_cast<unsigned>(lane) % group);
}
template <class T>
T __shfl_up_sync(unsigned, T mine, int step) {
  const unsigned own = qplan::emulated::number(), up = static_cast<unsigned>(step);
  return qplan::emulated::exchange(mine, own % 32 < up ? own : own - up);
}
inline unsigned __ballot_sync(unsigned, int mine) {
  return qplan::emulated::ballot(mine != 0);
}
inline unsigned __match_any_sync(unsigned, int mine) {
  unsigned same = 0;
  for (unsigned lane = 0; lane < qplan::emulated::kWarpSize; ++lane) {
    const int theirs = qplan::emulated::exchange(mine, qplan::emulated::first_of_warp() + lane);
    if (theirs == mine) same |= 1U << lane;
  }
  return same;
}
template <class T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to += value;
  return before;
}
template <class T>
T atomicMin(T* to, T value) {
  const T before = *to;
  if (value < before) *to = value;
  return before;
}
inline int __popc(unsigned bits) {
  return __builtin_popcount(bits);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((std::uint64_t{a} * b) >> 32);
}
inline unsigned __float_as_uint(float x) {
  unsigned bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __fdividef(float x, float y) {
  return x / y;
}
inline float rsqrtf(float x) {
  return 1 / std::sqrt(x);
}
