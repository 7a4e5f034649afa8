#include "cli/catalog.h"

#include <fmt/format.h>

#include <optional>
#include <ostream>

#include "cli/answer.h"
#include "cli/job.h"
#include "cli/options.h"
#include "cli/report.h"
#include "models/error.h"

namespace qplan {

Exit run_catalog(const Catalog& catalog, const Args& args, const Console& console) {
  std::string action, name;
  bool json = false;
  CommandLine line(catalog.verb, catalog.summary, catalog.example);
  std::optional<std::string> as;
  if (catalog.reads_as) {
    line.group("Model");
    add_read_as_option(line, as);
  }
  line.group("Output");
  line.flag("--json", "the list as JSON (show always prints JSON)", json);
  std::vector<std::string> words = catalog.built_in();
  words.emplace_back("show");
  line.positional("show", catalog.shows, set_name(action, words));
  line.positional("NAME", catalog.names, set_name(name, catalog.built_in()));
  if (!line.parse(args, console.out)) return Exit::done;

  if (action.empty()) {
    console.out << (json ? answer_text(catalog.verb, catalog.list_json()) : catalog.list_text());
    return Exit::done;
  }
  if (action != "show" && name.empty()) {
    // `qplan hardware h100-sxm`: one of them.
    console.out << answer_text(catalog.shown, catalog.one(action, as.value_or("")));
    return Exit::done;
  }
  if (action != "show") {
    throw Error(fmt::format("{} does not know '{}'; it lists, or shows one: `qplan {} show {}`",
                            catalog.verb, shown(action), catalog.verb,
                            name.empty() ? "NAME" : shown(name)));
  }
  if (name.empty()) {
    throw Error(
        fmt::format("{} show needs a name; `qplan {}` lists them", catalog.verb, catalog.verb));
  }
  console.out << answer_text(catalog.shown, catalog.one(name, as.value_or("")));
  return Exit::done;
}

}  // namespace qplan
