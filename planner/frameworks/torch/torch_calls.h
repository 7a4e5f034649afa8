#pragma once
// What Python and torch refuse of calls that shard a model, make its mesh and its optimizer.
// Private to check().

#include "planner/frameworks/scene.h"

namespace qplan {

void check_torch_calls(const Scene& scene, Findings& out);

}  // namespace qplan
