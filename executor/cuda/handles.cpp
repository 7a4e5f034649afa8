#include "executor/cuda/handles.h"

#include <fmt/format.h>

namespace qplan {
namespace {

std::string place(std::source_location where) {
  return fmt::format("{}:{}", where.file_name(), where.line());
}

constexpr double kGib = 1 << 30;

}  // namespace

void check(cudaError_t code, std::source_location where) {
  if (code == cudaSuccess) return;
  throw DeviceError(fmt::format("CUDA says '{}' at {}", cudaGetErrorString(code), place(where)));
}

OwnedStream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return OwnedStream(stream);
}

OwnedEvent make_event(bool timed) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
  return OwnedEvent(event);
}

DeviceMemory device_memory(std::int64_t bytes) {
  void* memory = nullptr;
  const cudaError_t code = cudaMalloc(&memory, static_cast<std::size_t>(bytes));
  if (code == cudaErrorMemoryAllocation) {
    std::size_t free = 0, total = 0;
    cudaGetLastError();  // out of memory is not sticky
    check(cudaMemGetInfo(&free, &total));
    throw OutOfDeviceMemory(
        fmt::format("the device is out of memory: {:.2f} GiB were asked for, {:.2f} of {:.2f} GiB "
                    "are free; use "
                    "a smaller micro_batch_size, more recompute or a higher zero stage",
                    static_cast<double>(bytes) / kGib, static_cast<double>(free) / kGib,
                    static_cast<double>(total) / kGib));
  }
  check(code);
  return DeviceMemory(static_cast<std::byte*>(memory));
}

HostMemory host_memory(std::int64_t bytes) {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, static_cast<std::size_t>(bytes)));
  return HostMemory(static_cast<std::byte*>(memory));
}

}  // namespace qplan
