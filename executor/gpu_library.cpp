// The CUDA executor as the program sees it: each function asks the library, if there is one.
#include "executor/gpu_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string_view>

#include "executor/gpu_limits.h"
#include "models/error.h"

namespace qplan {
namespace {

struct Loaded {
  const GpuLibrary* library = nullptr;
  std::string reason;  // why there is none
};

Loaded load() {
  // Stays loaded until the process ends: what it made, it must free.
  void* const handle = ::dlopen(kGpuLibraryFile, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const std::string problem = ::dlerror();
    if (std::string_view(problem).substr(0, std::string_view(kGpuLibraryFile).size()) ==
        kGpuLibraryFile) {
      return {
          nullptr,
          "this build has no CUDA part: it is qplan-cuda, of the same version, or is built where "
          "nvcc, NCCL and cuDNN are found"};
    }
    return {nullptr, fmt::format("the CUDA part cannot be loaded: {}", problem)};
  }
  using Entry = const GpuLibrary* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(handle, kGpuLibraryEntry));
  const GpuLibrary* const library = entry == nullptr ? nullptr : entry();
  if (library == nullptr || std::string_view(library->version) != QPLAN_VERSION) {
    return {nullptr, fmt::format("{} belongs to another version of qplan than {}; build both anew",
                                 kGpuLibraryFile, QPLAN_VERSION)};
  }
  return {library, {}};
}

const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

const GpuLibrary& required() {
  if (loaded().library == nullptr) throw Error(loaded().reason);
  return *loaded().library;
}

}  // namespace

void require_gpu_library() {
  required();
}

int gpu_count() {
  return loaded().library == nullptr ? 0 : loaded().library->count();
}

std::optional<std::string> why_not_on_gpu(const ModelSpec& model, const ParallelPlan& plan) {
  if (loaded().library == nullptr) return loaded().reason;
  return unexecuted_on_gpu(model, plan);
}

RunResult run_on_gpu(const ModelSpec& model, const ParallelPlan& plan, const JobFacts& facts,
                     const RunOptions& options, const ProcessRank& process) {
  return required().run(model, plan, facts, options, process);
}

std::unique_ptr<Measurer> make_measurer(const ProcessRank& process, Queues queues) {
  return required().measurer(process, queues);
}

}  // namespace qplan
