// What a page cannot do: serve on standard input.

#include "cli/commands.h"
#include "models/error.h"

namespace qplan {

Exit run_mcp(const Args&, const Console&) {
  throw Error(
      "mcp needs a standard input, which a page in a browser does not have; use the command");
}

}  // namespace qplan
