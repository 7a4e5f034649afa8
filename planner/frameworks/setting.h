#pragma once
// A configuration as its frameworks see it, whatever the file's format: keys with values, each with
// its place. Arguments are keyed by their flag ("--seq-length"), files by their path
// ("zero_optimization.stage").

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/json.h"
#include "planner/frameworks/finding.h"

namespace qplan {

// Bytes of a file.
struct Span {
  std::size_t begin = 0, end = 0;
};

// How a file spells keys and values.
enum class Syntax : std::uint8_t { words, yaml, json, python, toml };  // words: a shell's "--k v"

struct Setting {
  std::string key;
  Json value;  // true: a flag without a value; a list: several values
  Place place;
  Span whole{};          // key and value in the file
  Span text{};           // the value alone, with its quotes where the syntax is not words
  bool resolved = true;  // false: the value is known only when the file runs
  Span name{};           // the last part of the key, without quotes
  Syntax syntax = Syntax::words;
  std::string extra{};  // words behind an argument that it does not take
  bool there = true;    // false: whether it is given at all is known only when the file runs
};

class Settings {
 public:
  void add(Setting setting) { all_.push_back(std::move(setting)); }
  void append(const Settings& others);

  // The last of that key, for the last one counts; null: absent.
  [[nodiscard]] const Setting* find(std::string_view key) const;
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }
  // Whether a key begins like this: whether a section is there.
  [[nodiscard]] bool has_section(std::string_view prefix) const;

  [[nodiscard]] auto begin() const { return all_.begin(); }
  [[nodiscard]] auto end() const { return all_.end(); }
  [[nodiscard]] bool empty() const { return all_.empty(); }

 private:
  std::vector<Setting> all_;
};

// ---- values, which arguments spell as text and files as numbers ----

// Throw Error "must be a whole number, not 'x'" and the like.
std::int64_t whole_of(const Json& value, std::int64_t low = INT64_MIN,
                      std::int64_t high = INT64_MAX);
int degree_of(const Json& value);  // 1 to 2^20
double number_of(const Json& value);
bool truth_of(const Json& value);
std::string text_of(const Json& value);  // as an argument spells it: "4", "true", "a b"
std::vector<std::string> list_of(const Json& value);
std::string first_of(const Json& value);  // of a list; empty where there is none

// Equal as numbers where both are numbers, else as text without regard to case.
bool same_value(const Json& a, const Json& b);

}  // namespace qplan
