#pragma once
// Parts of a torchtitan configuration: keywords and values of what it is made of. Private to
// check().

#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/scene.h"

namespace qplan {

// Names of options/torchtitan_names.tsv that begin so, without that beginning.
std::vector<std::string> titan_names_under(std::string_view prefix);

// "did you mean ...?" of the nearest name; empty: none is near.
std::string nearest_text(const std::string& name, const std::vector<std::string>& names);

// CheckpointManager.Config(interval=500) and the like, of a file's text and calls.
void check_titan_parts(const std::string& file, const PythonText& text, Findings& out);

}  // namespace qplan
