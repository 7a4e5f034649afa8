#pragma once
// What is wrong with somebody's configuration: a sentence, its place, and what to write instead.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/words.h"

namespace qplan {

// error: the job fails or trains something else; warning: it runs, and is not what one wants;
// note: worth knowing.
enum class Severity : std::uint8_t { error, warning, note };

template <>
struct Words<Severity> {
  static constexpr std::string_view what = "severity";
  static constexpr auto table = std::to_array<std::pair<Severity, std::string_view>>(
      {{Severity::error, "error"}, {Severity::warning, "warning"}, {Severity::note, "note"}});
};

struct Place {
  std::string file;
  int line = 0;  // from 1; 0: the file as a whole
};

// "train.sh:12", or the file alone.
std::string to_string(const Place& place);

// Bytes [begin, end) of a file, replaced by `text`.
struct Edit {
  std::string file;
  std::size_t begin = 0, end = 0;
  std::string text;
};

// What makes a finding go away; of no edits, why nothing is written.
struct Correction : std::vector<Edit> {
  using std::vector<Edit>::vector;
  Correction(std::vector<Edit> edits) : std::vector<Edit>(std::move(edits)) {}
  std::string why_not;   // a sentence without its full stop; empty: there is nothing to tell
  bool renames = false;  // an option whose name was misspelt, and nothing else
};

struct Finding {
  Severity severity = Severity::error;
  std::string rule;  // stable snake_case id
  Place place;
  std::string message;  // what is true, one sentence without its full stop
  std::string instead;  // what to write; empty: nothing follows
  std::string source;   // where the framework says so
  Correction fix{};
};

// `text` with the edits of this file made; of edits that overlap the first stands.
std::string with_edits(const std::string& text, const std::string& file, std::vector<Edit> edits);

}  // namespace qplan
