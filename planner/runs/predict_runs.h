#pragma once
// What the cost model says of measured runs.

#include <optional>
#include <string>
#include <vector>

#include "costmodel/evaluate.h"
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

// One prediction a run, in their order, whatever the number of threads (0: all cores).
std::vector<RunPrediction> predict_runs(const std::vector<MeasuredRun>& runs, int threads = 0);

// Rules about what an implementation offers. The step program exists whatever they say, so a run
// that somebody made is priced, and a plan is not called infeasible for them alone.
bool is_soft_rule(std::string_view rule, RecipeKind recipe);

std::size_t soft_rule_count();  // of those for every recipe

}  // namespace qplan
