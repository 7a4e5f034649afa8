#pragma once
// other_flags: what a source says beside the columns, in its own words.

#include <string>
#include <vector>

#include "planner/runs/run_inputs.h"

namespace qplan {

// Applies the words of the cell to what the columns said; returns those that no phrase knows.
std::vector<std::string> apply_flags(const RunRow& row, RunInputs& in);

}  // namespace qplan
