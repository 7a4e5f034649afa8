#pragma once
// A recorded step's kernels beside the predicted step's, kind by kind.

#include <string>

#include "cli/asked_plan.h"
#include "models/json_fwd.h"
#include "planner/runs/kernel_trace.h"

namespace qplan {

struct KernelComparison {
  std::string name;
  KernelTrace recorded;
  int pipeline_rank = 0;
  KernelTotals predicted;
  // What products and attention took, over what they were predicted to.
  [[nodiscard]] double compute_ratio() const;
};

// Throws Error where the trace is of other GPUs than the plan's.
KernelComparison compare_kernels(std::string name, const KernelTrace& recorded,
                                 const AskedPlan& asked);

// The steps' difference by kind: what each adds to it stands in the last column.
std::string kernels_text(const KernelComparison& comparison);
Json kernels_json(const KernelComparison& comparison);

}  // namespace qplan
