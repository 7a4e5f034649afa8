#pragma once
// Values of options: whether each is of the type, range and choices that its list tells.

#include <string>

#include "planner/frameworks/scene.h"

namespace qplan {

void check_value(const Scene& scene, const ConfigPart& part, const Setting& setting, Findings& out);

// The list of options that a name or a value is held against.
std::string source_of_options(const ConfigPart& part);

}  // namespace qplan
