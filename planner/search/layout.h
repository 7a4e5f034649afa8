#pragma once
// Where a model's layers go along the pipeline: as frameworks put them when nobody tells them, and
// as evens out the work.

#include <string_view>
#include <vector>

#include "costmodel/evaluate.h"
#include "models/model_spec.h"
#include "models/plan/parallel_plan.h"
#include "models/program/recipe.h"

namespace qplan {

// Decoder layers of each virtual stage as the framework itself places them. Empty: evenly, or the
// stages cannot all be filled.
std::vector<int> framework_layout(const ModelSpec& model, const ParallelPlan& plan,
                                  RecipeKind recipe);

// Decoder layers of each virtual stage such that the busiest pipeline rank has the least to do,
// what the ends run besides counted: layers alike go one by one to the rank with the least work
// (the later of equals, which holds fewer microbatches), there to the chunk with the least. `plan`
// says pp, schedule and chunks. Empty: too few layers to leave no stage between the ends without.
std::vector<int> balanced_layout(std::int64_t layers, const ParallelPlan& plan, EndWork ends);

// The decoder layers of each stage in Megatron's --pipeline-model-parallel-layout: letters E
// embedding, t layer, m multi-token-prediction layer, L loss; '|' ends a stage; x*n and (...)*n
// repeat. Throws Error for anything else.
std::vector<int> parse_megatron_layout(std::string_view text);

}  // namespace qplan
