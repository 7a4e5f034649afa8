#pragma once
// Names that a correction of a Python file needs, with the imports that bring them. Private to
// check().

#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/finding.h"

namespace qplan {

// Edits of `text` that import `name` from torch.distributed.fsdp beside its import of FSDP; none
// where it is imported already. Not found: the file imports nothing from there.
struct ImportEdits {
  bool found = false;
  std::vector<Edit> edits;
};
ImportEdits import_of_fsdp(const std::string& text, const std::string& file, std::string_view name);

// The same of a module of Python's own: "import os" before the first import.
ImportEdits import_module(const std::string& text, const std::string& file,
                          std::string_view module);

// Several: names of modules, and modules themselves where the module is empty. One edit before the
// first import, of those that are not there.
struct WantedImport {
  std::string module;
  std::string_view names;
};
ImportEdits import_lines(const std::string& text, const std::string& file,
                         const std::vector<WantedImport>& wanted);

}  // namespace qplan
