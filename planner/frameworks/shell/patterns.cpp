#include "planner/frameworks/shell/patterns.h"

#include <cstddef>

namespace qplan {

std::optional<bool> matches(std::string_view text, std::string_view pattern) {
  if (pattern.find_first_of("[]()\\") != std::string_view::npos) return std::nullopt;
  // The last "*", and how much of the text it has taken so far.
  std::size_t at = 0, star = std::string_view::npos, taken = 0, p = 0;
  while (at < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = at;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[at])) {
      ++p;
      ++at;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      at = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace qplan
