#include "planner/frameworks/finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace qplan {

std::string to_string(const Place& place) {
  return place.line > 0 ? fmt::format("{}:{}", place.file, place.line) : place.file;
}

std::string with_edits(const std::string& text, const std::string& file, std::vector<Edit> edits) {
  // What is put in comes before what is replaced from there on.
  std::stable_sort(edits.begin(), edits.end(), [](const Edit& a, const Edit& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  std::string result;
  std::size_t at = 0;
  for (const Edit& edit : edits) {
    if (edit.file != file || edit.begin < at || edit.end > text.size()) continue;
    result.append(text, at, edit.begin - at);
    result += edit.text;
    at = edit.end;
  }
  return result.append(text, at, std::string::npos);
}

}  // namespace qplan
