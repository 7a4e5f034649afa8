#pragma once
// Commands of a script, by their program: which start a job, and which part of it their arguments
// make.

#include <string>
#include <vector>

#include "planner/frameworks/readers/gathered_job.h"

namespace qplan {

// Whether it starts a job or lists its arguments. `directives` are the batch system's.
bool read_command(const ShellCommand& written, const std::vector<ShellWord>& directives,
                  GatheredJob& job);

// The arguments of a program that trains; `script` empty: it is not known.
void add_arguments(const std::vector<ShellWord>& words, Place place, const std::string& script,
                   GatheredJob& job);

// "megatron sft", "swift sft".
const ShellWord* swift_command(const ShellScript& script);

}  // namespace qplan
