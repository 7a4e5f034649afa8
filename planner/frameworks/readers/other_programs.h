#pragma once
// Programs whose arguments are those of a framework that is read here, and that are none of its
// jobs.

#include <span>
#include <string>

#include "planner/frameworks/shell/shell.h"

namespace qplan {

// Of Megatron's repository and of those around it: it takes Megatron's arguments and trains
// nothing, by what it is named for (Megatron-LM d98e8a64, examples/inference, examples/export,
// tools).
bool trains_nothing(const std::string& script);

// EasyR1 was cut out of verl and kept its package's name: "python3 -m verl.trainer.main
// config=x.yaml worker.actor.model.model_path=y".
bool is_of_easy_r1(std::span<const ShellWord> words, const std::string& script);

}  // namespace qplan
