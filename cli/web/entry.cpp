// The thin end in a browser: a command line in, what the command prints and its exit code out
// (cli/web/engine.js). Files are those of the module's own file system.

#include <emscripten.h>

#include <exception>
#include <sstream>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "models/json.h"

EM_JS(void, tell_progress, (double done), {
  if (Module.progress) Module.progress(done);
});

namespace {

std::string& printed(bool error) {
  static std::string out, err;
  return error ? err : out;
}

}  // namespace

extern "C" {

// `words`: a JSON array of the arguments, without the program's name. Returns the exit code.
EMSCRIPTEN_KEEPALIVE int qplan_ask(const char* words) {
  const auto args = qplan::parse_json(words, "the question").get<std::vector<std::string>>();
  std::ostringstream out, err;
  const int code = qplan::run_cli(args, {out, err, {}, {}, tell_progress});
  printed(false) = std::move(out).str();
  printed(true) = std::move(err).str();
  return code;
}

// What the last question printed: UTF-8, and how many bytes.
EMSCRIPTEN_KEEPALIVE const char* qplan_text(int error) {
  return printed(error != 0).data();
}
EMSCRIPTEN_KEEPALIVE int qplan_size(int error) {
  return static_cast<int>(printed(error != 0).size());
}

}  // extern "C"
