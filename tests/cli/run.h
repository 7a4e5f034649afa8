#pragma once
// Calls a command as a person would, in-process.

#include <sstream>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "models/json.h"
#include "tests/temporary_folder.h"

namespace qplan {

struct Ran {
  int code;
  std::string out, err;
  [[nodiscard]] Json json() const { return parse_json(out, "the answer"); }
  [[nodiscard]] bool says(const std::string& text) const {
    return (out + err).find(text) != std::string::npos;
  }
};

inline Ran run(const std::vector<std::string>& args) {
  std::ostringstream out, err;
  const int code = run_cli(args, out, err);
  return {code, out.str(), err.str()};
}

// "a b c", split at spaces.
inline Ran run(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> args;
  for (std::string word; in >> word;) args.push_back(word);
  return run(args);
}

}  // namespace qplan
