#pragma once
// How a program of one's own wraps its model, and in which formats. Private to check().

#include "planner/frameworks/scene.h"

namespace qplan {

void check_own_script(const Scene& scene, Findings& out);

}  // namespace qplan
