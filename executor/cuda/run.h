#pragma once
// Executes training steps of a plan on GPUs: this process is one rank of it.

#include <optional>
#include <string>

#include "executor/launch.h"
#include "executor/run.h"

namespace qplan {

// GPUs of this machine; 0 where there is none, or where the CUDA part was not built.
int gpu_count();

// Why this machine's GPUs cannot execute this plan, though the reference backend may: it was built
// without them, or what unexecuted_on_gpu() says.
std::optional<std::string> why_not_on_gpu(const ModelSpec& model, const ParallelPlan& plan);

// Losses, norms and times are those of all ranks; gradients, weights and the trace are this rank's.
// Throws DeviceError: a failure of this rank, with op and block; the process should end then, for
// what it has on the device is not freed.
RunResult run_on_gpu(const ModelSpec& model, const ParallelPlan& plan, const JobFacts& facts,
                     const RunOptions& options, const ProcessRank& process);

}  // namespace qplan
