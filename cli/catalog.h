#pragma once
// The shape that `models` and `hardware` share: a list of what is built in, and `show NAME` for one
// of them whole.

#include <string>
#include <vector>

#include "cli/commands.h"
#include "models/json_fwd.h"

namespace qplan {

struct Catalog {
  std::string verb, summary, example;  // as help says them
  std::string shown;                   // the schema of what `show` prints
  std::string shows, names;            // what `show` prints; what NAME may be
  std::string (*list_text)();
  Json (*list_json)();
  std::vector<std::string> (*built_in)();  // their names
  // Throws Error for a name it does not know. `as`: what --as says, where it is an option.
  Json (*one)(const std::string& name, const std::string& as);
  bool reads_as = false;
};

Exit run_catalog(const Catalog& catalog, const Args& args, const Console& console);

}  // namespace qplan
