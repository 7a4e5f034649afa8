#pragma once
// Whether Python would read a file at all, and the names that it defines: what an interpreter says
// before the first line of a configuration runs.

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/setting.h"

namespace qplan {

struct PythonSlip {
  int line = 0;
  std::string message;
};

// The first thing that Python refuses, of those that are told without its grammar: brackets and
// strings that do not close, blocks without ':' or of no one's depth, commas that are missing,
// keywords given twice. Nothing: none of them is here.
std::optional<PythonSlip> python_slip(std::string_view text);

// `from module import a, b as c`: the names as the module has them.
struct PythonImport {
  std::string module;
  std::vector<std::string> names;  // "*" among them: all of it
  int line = 0;
};
std::vector<PythonImport> python_imports(std::string_view text);

// A name that is called and that nothing in the file defines or imports. Empty where the file
// imports everything of a module.
struct PythonName {
  std::string name;
  int line = 0;
};
std::vector<PythonName> undefined_calls(std::string_view text);

}  // namespace qplan
