#pragma once
// Whose kernels compute attention where a plan leaves it open.

#include "costmodel/profiles/hardware.h"
#include "models/plan/parallel_plan.h"
#include "models/program/recipe.h"

namespace qplan {

// The plan as a machine runs it: where it leaves attention's kernel to Transformer Engine or to
// torch, with the kernel that these take there.
ParallelPlan plan_on(const HardwareProfile& hardware, const ParallelPlan& plan,
                     const Recipe& recipe);

}  // namespace qplan
