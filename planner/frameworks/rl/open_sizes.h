#pragma once
// What is said of a job whose sizes a branch of its script decides. Private to check().

#include "planner/frameworks/scene.h"

namespace qplan {

// verl's own default is none of the sizes that the branches give: no plan is made of it.
void note_open_sizes(const ConfigPart& part, Findings& out);

}  // namespace qplan
