#pragma once
// What a GPU's time went to in recorded steps, by kind of kernel: PyTorch's profiler (Kineto's
// JSON) or Nsight Systems (nsys stats --report cuda_gpu_trace --format csv). The same of a
// predicted step, so that the two can be laid side by side.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/program/trace.h"
#include "models/units.h"
#include "models/words.h"

namespace qplan {

// In order of precedence: a moment belongs to the first kind that runs in it, so that the kinds and
// what is idle add up to the step. `recurrent` work (scans, delta rules) is attention's.
enum class KernelKind : std::uint8_t { product, attention, other, communication, copy };
inline constexpr std::size_t kKernelKinds = 5;

template <>
struct Words<KernelKind> {
  static constexpr std::string_view what = "kind of kernels";
  static constexpr auto table = std::to_array<std::pair<KernelKind, std::string_view>>(
      {{KernelKind::product, "products"},
       {KernelKind::attention, "attention"},
       {KernelKind::other, "other kernels"},
       {KernelKind::communication, "communication"},
       {KernelKind::copy, "copies"}});
};

// By its name, as planner/runs/kernel_names.tsv has them.
KernelKind kind_of_kernel(std::string_view name);

// Of one step of one GPU. Where kinds run side by side, `busy` counts each and `alone` the first.
struct KernelTotals {
  Seconds step;
  std::array<Seconds, kKernelKinds> busy, alone;
  [[nodiscard]] Seconds idle() const;  // no kernel at all
};

struct KernelTrace {
  KernelTotals mean;  // of the steps
  std::int64_t steps = 0, kernels = 0;
  std::optional<std::int64_t> rank, world;  // as the trace says
};

// Whether the text, or its beginning, is of either kind; nothing is said of the rest.
bool is_kernel_trace(std::string_view text);

// Steps are what PyTorch's profiler marks (ProfilerStep#7); `steps`: how many the whole trace is,
// where it marks none; 0: nobody says. Throws Error naming `where` for a trace without kernels, one
// that is cut off, or one whose steps nobody says.
KernelTrace read_kernel_trace(std::string_view text, std::string_view where,
                              std::int64_t steps = 0);

// The same of a predicted step, on one pipeline rank.
KernelTotals predicted_kernels(const Trace& step, int pipeline_rank);

}  // namespace qplan
