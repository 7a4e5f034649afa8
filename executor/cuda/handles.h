#pragma once
// Owners of what the CUDA libraries hand out, and the check of every call's result.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <type_traits>

#include "executor/cuda/device_error.h"

namespace qplan {

// Throws DeviceError with the runtime's own words and the place of the call.
void check(cudaError_t code, std::source_location where = std::source_location::current());

struct StreamDeleter {
  void operator()(cudaStream_t s) const noexcept { cudaStreamDestroy(s); }
};
using OwnedStream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, StreamDeleter>;
OwnedStream make_stream();

struct EventDeleter {
  void operator()(cudaEvent_t e) const noexcept { cudaEventDestroy(e); }
};
using OwnedEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventDeleter>;
OwnedEvent make_event(bool timed = false);

struct GraphDeleter {
  void operator()(cudaGraph_t g) const noexcept { cudaGraphDestroy(g); }
  void operator()(cudaGraphExec_t g) const noexcept { cudaGraphExecDestroy(g); }
};
using OwnedGraph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, GraphDeleter>;
using OwnedGraphExec = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, GraphDeleter>;

struct DeviceMemoryDeleter {
  void operator()(std::byte* p) const noexcept { cudaFree(p); }
};
using DeviceMemory = std::unique_ptr<std::byte, DeviceMemoryDeleter>;
// Out of memory says how much was asked for and how much was free.
DeviceMemory device_memory(std::int64_t bytes);

// Page-locked host memory, which copies to and from the device run beside kernels.
struct HostMemoryDeleter {
  void operator()(std::byte* p) const noexcept { cudaFreeHost(p); }
};
using HostMemory = std::unique_ptr<std::byte, HostMemoryDeleter>;
HostMemory host_memory(std::int64_t bytes);
template <class Number>
Number* numbers_in(const HostMemory& memory) {
  void* const all = memory.get();
  return static_cast<Number*>(all);
}

}  // namespace qplan
