#pragma once
// What is asked of the files of this folder. Private to it and to check().

#include "planner/frameworks/scene.h"

namespace qplan {

void check_titan_toml(const Scene& scene, Findings& out);
void check_nanotron(const Scene& scene, Findings& out);

}  // namespace qplan
