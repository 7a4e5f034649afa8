#pragma once
// What the planner's own rules say of the plan that files amount to. Private to check().

#include "planner/frameworks/scene.h"

namespace qplan {

// The rules that reject plans explain configurations too. They stand where the first word was said
// that their message names.
void check_rules(const Scene& scene, Findings& out);

// Whether the step is small enough to be simulated.
bool check_size(const Scene& scene, Findings& out);

}  // namespace qplan
