#include "cli/output.h"

#include <fmt/format.h>

#include <ostream>

#include "models/error.h"
#include "models/json.h"

namespace qplan {
namespace {

bool is_standard_output(const std::string& path) {
  return path == "-";
}

}  // namespace

void refuse_one_stream(const std::string& path, bool json) {
  if (!json || !is_standard_output(path)) return;
  throw Error("--json and -o - both write to standard output; give one of them");
}

void write_output(const std::string& path, std::string_view text, const Console& console) {
  if (!is_standard_output(path)) return write_file_atomically(path, text);
  console.out << text;
  console.out.flush();
}

Console beside_output(const std::string& path, const Console& console) {
  if (!is_standard_output(path)) return console;
  return {.out = console.err,
          .err = console.err,
          .terminal = console.terminal,
          .asked = console.asked,
          .progress = console.progress};
}

std::string output_name(const std::string& path) {
  return is_standard_output(path) ? "standard output" : path;
}

void refuse_standard_output(const std::string& option, const std::string& path) {
  if (!is_standard_output(path)) return;
  throw Error(fmt::format("{} may write several files; '-', standard output, takes one", option));
}

}  // namespace qplan
