#pragma once
// The files that `qplan check` reads: those named, and what they read in turn.

#include <string>
#include <vector>

#include "planner/frameworks/readers/recognise.h"

namespace qplan {

// The files named; of what lies beside a script, the scripts that it sources or starts, and the
// configurations that its commands name ("--deepspeed ds_config.json").
std::vector<ConfigText> read_check_files(const std::vector<std::string>& names);

}  // namespace qplan
