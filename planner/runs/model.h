#pragma once
// The model of a measured run, from the architecture columns of its row.

#include "planner/runs/run_inputs.h"

namespace qplan {

// Sets the model of `in`, whose recipe is set: the details of `base_model` where the row names one,
// with the sizes that the row states; without one, a decoder of the GPT-2 kind (mlp gelu) or the
// Llama kind (else) of those sizes. Throws Error saying what is missing.
void set_model(const RunRow& row, RunInputs& in);

}  // namespace qplan
