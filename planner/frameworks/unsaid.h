#pragma once
// The plan of a configuration that says nothing: what each framework takes by default.

#include "models/model_spec.h"
#include "models/plan/parallel_plan.h"
#include "models/program/recipe.h"
#include "planner/frameworks/emit.h"

namespace qplan {

// dp and the global batch are 0: not known.
ParallelPlan plan_unsaid(Framework framework, const ModelSpec& model, RecipeKind recipe);

}  // namespace qplan
