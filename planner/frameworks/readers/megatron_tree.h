#pragma once
// Megatron-LM's --yaml-cfg: a tree of its configuration classes' fields, beside arguments
// (megatron/training/yaml_arguments.py at d98e8a64).

#include "planner/frameworks/setting.h"

namespace qplan {

bool is_tree_of_megatron(const Settings& yaml);

// Its fields as arguments' names. Null and false say nothing; fields that no argument has and that
// no plan hangs on are left out.
Settings arguments_of_tree(const Settings& yaml);

}  // namespace qplan
