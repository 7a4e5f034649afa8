#pragma once
// Weights that are kept in fp8 alone, without a copy of 16 bits: Megatron's --fp8-param-gather.

#include "models/parallel_plan.h"
#include "models/program/recipe.h"

namespace qplan {

// Whether the recipe keeps a plan's linear weights so. It takes a distributed optimizer on the GPU
// (megatron/training/arguments.py). Asked of any plan, whatever rules it breaks.
bool keeps_fp8_parameters(const ParallelPlan& plan, const Recipe& recipe);

}  // namespace qplan
