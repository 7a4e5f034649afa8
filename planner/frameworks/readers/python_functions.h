#pragma once
// Functions of a Python file, and which of them make one configuration together.

#include <string>
#include <string_view>

#include "planner/frameworks/readers/formats.h"

namespace qplan {

// Where functions of a file assign different values to one field, and neither calls the other, they
// make configurations of their own: the assignments of one stay in `text`, with those of the
// functions that it calls and those outside of any. It is the one that the file itself calls, else
// the first of them. Returns its name; empty: there is one configuration, and nothing was taken
// away.
std::string one_of_several(std::string_view file, PythonText& text);

}  // namespace qplan
