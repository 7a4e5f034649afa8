#pragma once
// Parts of a torchtitan configuration: keywords and values of what it is made of. Private to
// check().

#include <string>

#include "planner/frameworks/scene.h"

namespace qplan {

// CheckpointManager.Config(interval=500) and the like, of a file's text and calls.
void check_titan_parts(const std::string& file, const PythonText& text, Findings& out);

}  // namespace qplan
