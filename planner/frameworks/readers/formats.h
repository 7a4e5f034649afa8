#pragma once
// Files of keys and values, as settings with their places.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/setting.h"

namespace qplan {

struct FormatText {
  Settings settings;              // keys are paths: "zero_optimization.stage", "list.0"
  std::vector<Finding> findings;  // what the reader tolerated, and other readers do not
};

// No configuration nests deeper or holds more; a text made to exhaust memory does.
constexpr int kDeepestValue = 64;
constexpr std::size_t kMostValues = 100'000;
constexpr std::string_view kTooManyValues = "it holds more values than any configuration";

// What editors of Windows put before a text in UTF-8.
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// How many bytes of it a text begins with.
constexpr std::size_t byte_order_mark(std::string_view text) {
  return text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
}

// JSON, with remarks ('#', '//') and trailing commas tolerated and found. Throws Error for text
// that is no JSON, cut off, or nested deeper than 64.
FormatText read_json_settings(std::string_view text, const std::string& name, int first_line = 1);

// Who reads a YAML. PyYAML takes "2e3" and "1e-5" for text, by YAML 1.1: a number with an exponent
// has a point, and its exponent a sign. OmegaConf, and what turns texts into numbers of its own,
// take any.
enum class YamlLoader : std::uint8_t { pyyaml, omegaconf };

// YAML 1.1, of one document or several: "section.key", aliases and "<<" followed. Of a list,
// scalars are its value; mappings in it are sections, "list.0.key". A value that stands elsewhere
// (an alias of a scalar) has no span. Throws Error naming the line for text that is no YAML, has a
// list or a word in place of keys, or exceeds the limits above.
FormatText read_yaml_settings(std::string_view text, const std::string& name,
                              YamlLoader loader = YamlLoader::pyyaml);

// TOML 1.0, as Python's tomllib reads it: "section.key"; of a list of tables "list.0.key". Headers
// are settings of their own, objects. A key or a table that stands twice is a finding, and the last
// counts. Throws Error naming the line for text that is no TOML, or exceeds the limits above.
FormatText read_toml_settings(std::string_view text, const std::string& name);

// ---- Python ----

struct PythonArgument {
  std::string name;  // empty: positional
  Json value;        // of a literal or arithmetic of literals; null else
  std::string text;  // as written
  Place place;
  Span span{};  // of the value
  bool resolved = true;
  Span name_span{};  // of the keyword, or of the last name of what is assigned to
};

// `a.b.C(x, name=1)`: calls with their arguments, outer ones first.
struct PythonCall {
  std::string callee;  // "a.b.C"
  std::vector<PythonArgument> arguments;
  Place place;
  Span name_span{};    // of the callee
  bool judged = true;  // false: it makes another configuration than the one that is judged
  [[nodiscard]] const PythonArgument* find(std::string_view name) const;
};

// `config.parallelism.x = 4`
struct PythonAssignment {
  std::string target;
  PythonArgument value;
};

struct PythonText {
  std::vector<PythonCall> calls;
  std::vector<PythonAssignment> assignments;
};

// Never runs anything and never refuses: what is no call and no assignment is passed over.
PythonText read_python(std::string_view text, const std::string& name);

// The line of an offset, from 1.
int line_of(std::string_view text, std::size_t offset);

}  // namespace qplan
