#pragma once
// Where frameworks put a model's layers along the pipeline when nobody tells them.

#include <string_view>
#include <vector>

#include "models/model_spec.h"
#include "models/parallel_plan.h"
#include "models/program/recipe.h"

namespace qplan {

// Decoder layers of each virtual stage as the framework itself places them. Empty: evenly, or the
// stages cannot all be filled.
std::vector<int> framework_layout(const ModelSpec& model, const ParallelPlan& plan,
                                  RecipeKind recipe);

// The decoder layers of each stage in Megatron's --pipeline-model-parallel-layout: letters E
// embedding, t layer, m multi-token-prediction layer, L loss; '|' ends a stage; x*n and (...)*n
// repeat. Throws Error for anything else.
std::vector<int> parse_megatron_layout(std::string_view text);

}  // namespace qplan
