#pragma once
// Dictionaries of literals in Python, as keys of the file that says the same.

#include <string>

#include "planner/frameworks/readers/formats.h"

namespace qplan {

// Its keys behind `section`, each at the argument's place. Empty: it is none, or holds more than
// literals.
Settings dictionary_settings(const PythonArgument& argument, const std::string& section);

}  // namespace qplan
