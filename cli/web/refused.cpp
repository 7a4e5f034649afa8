// Verbs that a page cannot answer: they start ranks, measure GPUs or serve on standard input.

#include <fmt/format.h>

#include "cli/commands.h"
#include "models/error.h"

namespace qplan {
namespace {

[[noreturn]] Exit refuse(std::string_view verb, std::string_view needs) {
  throw Error(fmt::format("{} needs {}, which a page in a browser does not have; use the command",
                          verb, needs));
}

}  // namespace

Exit run_run(const Args&, const Console&) {
  refuse("run", "threads or GPUs");
}

Exit run_validate(const Args&, const Console&) {
  refuse("validate", "threads or GPUs");
}

Exit run_calibrate(const Args&, const Console&) {
  refuse("calibrate", "GPUs");
}

Exit run_mcp(const Args&, const Console&) {
  refuse("mcp", "a standard input");
}

}  // namespace qplan
