#pragma once
// Backslashes within a line of a shell script, which continue nothing.

#include <vector>

#include "planner/frameworks/readers/recognise.h"
#include "planner/frameworks/shell/shell.h"

namespace qplan {

// Lines that were run together: "--nproc_per_node=8 \ --nnodes=2", where the backslash continues
// nothing. Said once a command, which is then read as it was meant. `texts` are the files that its
// words stand in.
ShellCommand without_strays(ShellCommand command, const std::vector<ConfigText>& texts,
                            std::vector<Finding>& findings);

}  // namespace qplan
