#pragma once
// Weights that are kept in fp8 alone, without a copy of 16 bits: Megatron's --fp8-param-gather. In
// tensorwise fp8 and MXFP8.

#include "models/plan/parallel_plan.h"
#include "models/program/recipe.h"

namespace qplan {

// Whether the recipe can keep a plan's linear weights so: it takes a distributed optimizer on the
// GPU (megatron/training/arguments.py). Asked of any plan, whatever rules it breaks.
bool may_keep_fp8_parameters(const ParallelPlan& plan, const Recipe& recipe);

// ... and the plan does (ParallelPlan::fp8_param_gather).
bool keeps_fp8_parameters(const ParallelPlan& plan, const Recipe& recipe);

}  // namespace qplan
