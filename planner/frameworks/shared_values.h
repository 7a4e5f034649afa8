#pragma once
// Whether anything else reads a value where it stands. Private to corrections.

#include <string>

#include "planner/frameworks/scene.h"

namespace qplan {

// Another option whose value is the same bytes; empty: none.
std::string other_reader(const Scene& scene, const Setting& s);

// Why a value that a shell's variable holds stays as it is; empty: this option alone reads it.
std::string why_keep_variable(const Scene& scene, const std::string& text, const Setting& s);

}  // namespace qplan
