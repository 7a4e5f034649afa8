#include "models/words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace qplan {

bool same_word(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) { return (x == '_' ? '-' : x) == (y == '_' ? '-' : y); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

void unknown_word(std::string_view what, std::string_view text,
                  const std::vector<std::string>& known) {
  throw Error(fmt::format("{} '{}' is unknown; choose one of {}{}", what, shown(text),
                          fmt::join(known, ", "), did_you_mean(text, known)));
}

}  // namespace qplan
