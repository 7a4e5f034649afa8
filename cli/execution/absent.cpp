// Verbs that start ranks or measure GPUs, where the program was built without the executor.

#include <fmt/format.h>

#include "cli/commands.h"
#include "models/error.h"

namespace qplan {
namespace {

#ifdef __EMSCRIPTEN__
constexpr std::string_view kWhere = "which a page in a browser does not have; use the command";
#else
constexpr std::string_view kWhere =
    "which this program was built without; build it with -DQPLAN_EXECUTOR=ON";
#endif

[[noreturn]] Exit refuse(std::string_view verb) {
  throw Error(fmt::format("{} needs the executor, {}", verb, kWhere));
}

}  // namespace

Exit run_run(const Args&, const Console&) {
  refuse("run");
}

Exit run_validate(const Args&, const Console&) {
  refuse("validate");
}

Exit run_calibrate(const Args&, const Console&) {
  refuse("calibrate");
}

}  // namespace qplan
