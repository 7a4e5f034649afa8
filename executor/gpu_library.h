#pragma once
// What the CUDA executor gives to the program. It is a library of its own, libqplan_cuda.so, loaded
// when first asked: cuBLASLt, cuDNN and NCCL take 100 MB, which a search does not need, and a
// program built with them runs on machines that have none of them.

#include <memory>
#include <optional>
#include <string>

#include "executor/cuda/measure.h"
#include "executor/cuda/run.h"

namespace qplan {

struct GpuLibrary {
  const char* version;  // of the program it was built with; another's types may differ
  int (*count)();
  RunResult (*run)(const ModelSpec&, const ParallelPlan&, const JobFacts&, const RunOptions&,
                   const ProcessRank&);
  std::unique_ptr<Measurer> (*measurer)(const ProcessRank&, Queues);
};

// Throws Error, which says why, where the library is not there.
void require_gpu_library();

constexpr const char* kGpuLibraryFile = "libqplan_cuda.so";
constexpr const char* kGpuLibraryEntry = "qplan_gpu_library";  // extern "C" const GpuLibrary*()

}  // namespace qplan
