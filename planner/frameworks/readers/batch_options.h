#pragma once
// Slurm's options in a script's "#SBATCH" lines. Private to the readers.

#include <span>
#include <vector>

#include "planner/frameworks/finding.h"
#include "planner/frameworks/shell/shell.h"

namespace qplan {

// Names a slip away from one of sbatch's, at which it refuses the script. Others may be a plugin's.
std::vector<Finding> misspelt_directives(std::span<const ShellWord> directives);

}  // namespace qplan
