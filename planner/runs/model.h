#pragma once
// The model of a measured run, from the architecture columns of its row.

#include "models/model_spec.h"
#include "models/program/recipe.h"
#include "planner/runs/row.h"

namespace qplan {

// The details of `base_model` where the row names one, with the sizes that the row states; without
// one, a decoder of the GPT-2 kind (mlp gelu) or the Llama kind (else) of those sizes. Throws Error
// saying what is missing.
ModelSpec model_of_run(const RunRow& row, RecipeKind recipe);

}  // namespace qplan
