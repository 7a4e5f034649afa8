#pragma once
// Calls a command as a person would, in-process.

#include <unistd.h>

#include <filesystem>
#include <sstream>
#include <string>

#include "cli/commands.h"
#include "models/json.h"

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

// A folder that is gone at the end of the test.
class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(std::filesystem::temp_directory_path() /
              ("qplan-" + name + "-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace qplan
