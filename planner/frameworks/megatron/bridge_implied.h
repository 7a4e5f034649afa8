#pragma once
// Fields of a Megatron-Bridge configuration that a program leaves to others which it says.

#include <vector>

#include "planner/frameworks/readers/formats.h"

namespace qplan {

std::vector<PythonAssignment> with_implied(std::vector<PythonAssignment> fields);

}  // namespace qplan
