// What a build without nvcc has instead of the CUDA backend.

#include "executor/cuda_run.h"
#include "executor/measure.h"
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

struct Measurer::Device {
  GpuFacts facts;
};

Measurer::Measurer(const ProcessRank& /*process*/) {
  throw Error(*why_not_on_gpu({}, {}));
}
Measurer::~Measurer() = default;

std::optional<Seconds> Measurer::time(const Work& /*work*/) {
  return std::nullopt;
}
double Measurer::sustained_share(const Work& /*work*/, Seconds /*duration*/) {
  return 1;
}
Seconds Measurer::launch_time() {
  return {};
}
BytesPerSecond Measurer::copy_rate(bool /*to_host*/) {
  return {};
}
const GpuFacts& Measurer::facts() const {
  return device_->facts;
}

}  // namespace qplan
