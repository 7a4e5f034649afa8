#pragma once
// JSON as people write it, read strictly: every complaint names the path ("plan.tp") and the file.

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.h"
#include "models/json_fwd.h"

namespace qplan {

// How much is read before it is refused. The largest files of qplan's own are kernel tables of 30
// kB and 7,000 values; a config.json has a few kB. These limits leave room and keep any refusal
// below a second: a list of 64 MiB took 6 s and 1 GiB of memory, an object of that size 26 s
// (2-core EPYC, RelWithDebInfo).
struct JsonLimits {
  std::size_t bytes = std::size_t{8} << 20U;
  std::size_t values = 250'000;
};

// Parses text. Throws Error for truncated or malformed text (line and column), duplicate keys,
// nesting deeper than 64, more values than the limit, NaN or numbers out of range. `where` is the
// file's name.
Json parse_json(std::string_view text, std::string_view where, const JsonLimits& limits = {});

// A regular file within the limit, as it is.
std::string read_text_file(const std::string& path, const JsonLimits& limits = {});

// The same, parsed.
Json read_json_file(const std::string& path, const JsonLimits& limits = {});

// Writes whole or not at all: a temporary file in the same folder, then a rename.
void write_file_atomically(const std::string& path, std::string_view text);

// "a list", "a string", ...: what a value is, for messages.
std::string_view type_name(const Json& value);

// A required key that is not there.
class MissingKey : public Error {
 public:
  MissingKey(std::string path, std::string hint);
  [[nodiscard]] const std::string& path() const { return path_; }  // "config.json: hidden_size"
  [[nodiscard]] const std::string& hint() const { return hint_; }  // a near name that is there

 private:
  std::string path_, hint_;
};

// One object, read key by key; `finish()` complains about keys nobody asked for.
class JsonReader {
 public:
  // `path` is "plan" or "plan.json: plan"; a path that ends in ':' is a file and its top object.
  JsonReader(const Json& object, std::string path);

  [[nodiscard]] bool has(std::string_view key) const;      // present and not null
  [[nodiscard]] bool is_null(std::string_view key) const;  // present as null
  // Required values; throw Error with the path when missing, of another type or out of range.
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high);
  double number(std::string_view key, double low, double high);
  bool boolean(std::string_view key);
  std::string string(std::string_view key);
  const Json& value(std::string_view key);  // any type
  // The same with a default for an absent (or null) key.
  std::int64_t integer_or(std::string_view key, std::int64_t low, std::int64_t high,
                          std::int64_t fallback);
  double number_or(std::string_view key, double low, double high, double fallback);
  bool boolean_or(std::string_view key, bool fallback);
  std::string string_or(std::string_view key, std::string fallback);

  void ignore(std::initializer_list<std::string_view> keys);  // known, of no interest here
  void finish() const;  // throws Error for a key never asked for, with the nearest known key
  [[nodiscard]] std::vector<std::string> never_asked_for() const;

  [[nodiscard]] const Json& object() const { return object_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string path_of(std::string_view key) const;
  // Throws Error "<path of key> <sentence>".
  [[noreturn]] void fail(std::string_view key, std::string_view sentence) const;

 private:
  const Json* find(std::string_view key);
  const Json& require(std::string_view key);

  const Json& object_;
  std::string path_;
  std::vector<std::string> asked_;
};

}  // namespace qplan
