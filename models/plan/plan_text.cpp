#include "models/plan/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "models/error.h"

namespace qplan {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t from = 0;;) {
    const std::size_t to = text.find(separator, from);
    parts.push_back(text.substr(from, to - from));
    if (to == std::string_view::npos) return parts;
    from = to + 1;
  }
}

std::int64_t parse_count(std::string_view what, std::string_view text, std::int64_t low,
                         std::int64_t high) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (text.empty() || stop != end || code != std::errc{} || value < low || value > high) {
    throw Error(
        fmt::format("{} must be a whole number from {} to {}, not '{}'", what, low, high, text));
  }
  return value;
}

std::string layout_text(const std::vector<int>& layout) {
  std::vector<std::string> terms;
  for (auto at = layout.begin(); at != layout.end();) {
    const auto end = std::find_if(at, layout.end(), [&](int n) { return n != *at; });
    if (end - at >= 3) {
      terms.push_back(fmt::format("{}*{}", *at, end - at));
      at = end;
    } else {
      terms.push_back(std::to_string(*at++));
    }
  }
  return fmt::format("{}", fmt::join(terms, "+"));
}

std::vector<int> parse_layout(std::string_view text) {
  constexpr std::size_t kMostStages = 1 << 16;
  std::vector<int> layout;
  for (const std::string_view term : split(text, '+')) {
    const auto star = term.find('*');
    const auto layers =
        parse_count("a stage's layer count in layout", term.substr(0, star), 0, kMaxDegree);
    const auto alike =
        star == std::string_view::npos
            ? 1
            : parse_count("how many stages alike in layout", term.substr(star + 1), 1, kMaxDegree);
    if (layout.size() + static_cast<std::size_t>(alike) > kMostStages) {
      throw Error(fmt::format("layout lists more than {} stages", kMostStages));
    }
    layout.insert(layout.end(), static_cast<std::size_t>(alike), static_cast<int>(layers));
  }
  return layout;
}

}  // namespace qplan
