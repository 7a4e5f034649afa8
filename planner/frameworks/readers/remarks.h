#pragma once
// Text whose lines were run together, as it is when it is copied from a page: the first remark
// takes everything behind it, and what it takes is missing.

#include <vector>

#include "planner/frameworks/readers/recognise.h"

namespace qplan {

// Remarks of a YAML, JSON or Python file that hold keys of a configuration, each behind something
// else on its line, or many at once. A key that was only switched off by a '#' of its own is none.
std::vector<Finding> swallowed_by_remarks(const ConfigText& file, FileKind kind);

}  // namespace qplan
