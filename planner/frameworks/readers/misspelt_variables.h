#pragma once
// A shell's variable that no script sets, beside one that is set and never used, a slip apart.

#include <span>
#include <vector>

#include "planner/frameworks/finding.h"
#include "planner/frameworks/readers/recognise.h"

namespace qplan {

// By the words of the scripts alone, whatever is run of them. `scripts` are those of one job, of
// which what one sets another may use.
std::vector<Finding> misspelt_variables(std::span<const ConfigText* const> scripts);

}  // namespace qplan
