#pragma once
// What a program sets in Megatron-Bridge's configuration. Private to check().

#include "planner/frameworks/scene.h"

namespace qplan {

// cfg.model.tensor_model_paralel_size = 2: Python makes a field of that name, which nobody reads.
// cfg.optimzer.lr = 1e-4: there is no such section to set it in.
void check_fields_of_bridge(const PythonText& text, Findings& out);

}  // namespace qplan
