#pragma once
// Names in a training program that Python, torch or the program itself has not. Private to check().

#include "planner/frameworks/scene.h"

namespace qplan {

void check_absent_names(const Scene& scene, Findings& out);

}  // namespace qplan
