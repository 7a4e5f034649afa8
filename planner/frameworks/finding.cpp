#include "planner/frameworks/finding.h"

#include <fmt/format.h>

#include <algorithm>

namespace qplan {

std::string to_string(const Place& place) {
  return place.line > 0 ? fmt::format("{}:{}", place.file, place.line) : place.file;
}

std::string with_edits(const std::string& text, const std::string& file, std::vector<Edit> edits) {
  std::stable_sort(edits.begin(), edits.end(),
                   [](const Edit& a, const Edit& b) { return a.begin < b.begin; });
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
