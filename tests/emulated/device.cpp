// Fibers for the threads of a block, and CUDA's runtime on the host: device memory is memory, and
// whatever is enqueued has happened when its call returns.

#include "tests/emulated/device.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <span>

namespace qplan::emulated {

Index thread, block, block_size, grid_size;

namespace {

constexpr std::size_t kStack = 64 << 10;

// A thread of the running block. Contexts are made once: later switches need no system call.
struct Fiber {
  std::unique_ptr<std::byte[]> stack = std::make_unique<std::byte[]>(kStack);
  ucontext_t context{};
  jmp_buf resume{};
  bool entered = false, ended = true, at_barrier = false;
};

std::array<Fiber, kMostThreads> fibers;
unsigned running = 0;
jmp_buf scheduler;
ucontext_t unused;
const std::function<void()>* kernel = nullptr;

void give_way() {
  if (_setjmp(fibers[running].resume) == 0) _longjmp(scheduler, 1);
}

void run_fiber() {
  for (;;) {
    (*kernel)();
    fibers[running].ended = true;
    give_way();
  }
}

void run(unsigned number) {
  Fiber& fiber = fibers[number];
  running = number;
  thread = {number % block_size.x, number / block_size.x % block_size.y,
            number / block_size.x / block_size.y};
  if (_setjmp(scheduler) != 0) return;
  if (fiber.entered) _longjmp(fiber.resume, 1);
  fiber.entered = true;
  getcontext(&fiber.context);
  fiber.context.uc_stack = {.ss_sp = fiber.stack.get(), .ss_flags = 0, .ss_size = kStack};
  makecontext(&fiber.context, run_fiber, 0);
  swapcontext(&unused, &fiber.context);
}

void run_block(unsigned threads) {
  for (unsigned i = 0; i < threads; ++i) fibers[i].ended = fibers[i].at_barrier = false;
  const auto own = std::span(fibers).first(threads);
  while (!std::ranges::all_of(own, &Fiber::ended)) {
    bool moved = false;
    for (unsigned i = 0; i < threads; ++i) {
      if (fibers[i].ended || fibers[i].at_barrier) continue;
      run(i);
      moved = true;
    }
    if (moved) continue;
    for (Fiber& fiber : own) fiber.at_barrier = false;
  }
}

}  // namespace

unsigned number() {
  return running;
}

void take_turns() {
  give_way();
}

void barrier() {
  fibers[running].at_barrier = true;
  give_way();
}

unsigned ballot(bool mine) {
  unsigned bits = 0;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if (exchange(mine, first_of_warp() + lane)) bits |= 1U << lane;
  }
  return bits;
}

bool any_of_block(bool mine) {
  static unsigned count = 0;
  barrier();
  count = 0;
  barrier();
  count += mine ? 1 : 0;
  barrier();
  return count > 0;
}

void Launch::operator()(const std::function<void()>& body) const {
  kernel = &body;
  block_size = {threads_.x, threads_.y, threads_.z};
  grid_size = {grid_.x, grid_.y, grid_.z};
  for (unsigned z = 0; z < grid_.z; ++z) {
    for (unsigned y = 0; y < grid_.y; ++y) {
      for (unsigned x = 0; x < grid_.x; ++x) {
        block = {x, y, z};
        run_block(threads_.x * threads_.y * threads_.z);
      }
    }
  }
}

}  // namespace qplan::emulated

// ---- the CUDA runtime ----

namespace {

template <class T>
cudaError_t give(T* to, T value) {
  *to = value;
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  return give(memory, std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment));
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return cudaMalloc(memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) {
  return cudaFree(memory);
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = std::size_t{1} << 40;
  return give(free, *total / 2);
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t) {
  for (std::size_t row = 0; row < height; ++row) {
    std::memmove(static_cast<std::byte*>(to) + row * to_pitch,
                 static_cast<const std::byte*>(from) + row * from_pitch, width);
  }
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t) {
  return cudaMemset(memory, value, bytes);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t call, void* argument) {
  call(argument);
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  return give(count, 1);
}
cudaError_t cudaGetDevice(int* device) {
  return give(device, 0);
}
cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) {
  return "emulated";
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  return give(greatest, 0);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return give(stream, cudaStream_t{});
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return give(event, cudaEvent_t{});
}
cudaError_t cudaEventDestroy(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  return give(milliseconds, 0.0F);
}

}  // extern "C"
