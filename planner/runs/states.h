#pragma once
// The number formats of a published run's weights and optimizer states, by its framework's release.

#include <string>

#include "planner/runs/measured_runs.h"
#include "planner/runs/row.h"

namespace qplan {

// "Megatron-Bridge (NeMo 26.04.01)" is of April 2026: 26.04; 0: none is named.
double release_of(const std::string& framework);

// NeMo's, of the first and of AutoModel. `plan`: number format, model and batch are set.
void set_run_states(const RunRow& row, const RunInputs& in, ParallelPlan& plan);

}  // namespace qplan
