#pragma once
// What the cost model says of measured runs.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/evaluate.h"
#include "costmodel/profiles/hardware.h"
#include "planner/runs/measured_runs.h"

namespace qplan {

struct RunPrediction {
  std::optional<Estimate> estimate;  // none: it cannot be asked about, or a rule refuses it
  std::string unpriced;              // why it cannot be asked about; empty: it can
  std::string refused;               // the first hard rule that it breaks, in words; empty: none
  std::vector<std::string> broken;   // ids of all the rules that it breaks
  // No hard rule refuses it and it fits. Meaningless where it cannot be asked about.
  bool feasible = false;
};

// The machine that a run's `hardware` names.
using MachineOfName = std::function<HardwareProfile(const std::string& name)>;

// One prediction a run, in their order, whatever the number of threads (0: all cores).
std::vector<RunPrediction> predict_runs(const std::vector<MeasuredRun>& runs, int threads = 0,
                                        const MachineOfName& machine = load_hardware);

}  // namespace qplan
