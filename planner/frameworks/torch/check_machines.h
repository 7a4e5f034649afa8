#pragma once
// What accelerate's launcher makes of its counts of machines, processes and devices.

#include "planner/frameworks/scene.h"

namespace qplan {

// Of accelerate's yaml or arguments, of whatever type; those of a command count first.
void check_machines(const Scene& scene, const ConfigPart& part, Findings& out);

}  // namespace qplan
