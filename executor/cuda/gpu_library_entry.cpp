// The one symbol that libqplan_cuda.so shows.
#include "executor/gpu_library.h"

extern "C" __attribute__((visibility("default"))) const qplan::GpuLibrary* qplan_gpu_library() {
  static constexpr qplan::GpuLibrary kLibrary{.version = QPLAN_VERSION,
                                              .count = qplan::gpu_count,
                                              .run = qplan::run_on_gpu,
                                              .measurer = qplan::make_measurer};
  return &kLibrary;
}
