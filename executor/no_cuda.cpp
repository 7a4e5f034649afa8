// What a build without nvcc has instead of the CUDA backend.

#include "executor/cuda_run.h"
#include "models/error.h"

namespace qplan {

int gpu_count() {
  return 0;
}

std::optional<std::string> why_not_on_gpu(const ModelSpec& /*model*/,
                                          const ParallelPlan& /*plan*/) {
  return "this build has no CUDA part: nvcc, NCCL and cuDNN were not found when it was configured";
}

RunResult run_on_gpu(const ModelSpec& model, const ParallelPlan& plan, const JobFacts& /*facts*/,
                     const RunOptions& /*options*/, const ProcessRank& /*process*/) {
  throw Error(*why_not_on_gpu(model, plan));
}

}  // namespace qplan
