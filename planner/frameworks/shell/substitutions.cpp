#include "planner/frameworks/shell/substitutions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <vector>

#include "planner/frameworks/shell/arithmetic.h"

namespace qplan {
namespace {

constexpr std::size_t kMostNumbers = 10'000;

std::optional<std::int64_t> whole(std::string_view word) {
  std::int64_t n = 0;
  const auto [stop, code] = std::from_chars(word.data(), word.data() + word.size(), n);
  const bool good = code == std::errc{} && stop == word.data() + word.size();
  return good ? std::optional(n) : std::nullopt;
}

// "seq LAST", "seq FIRST LAST", "seq FIRST STEP LAST" (seq(1)).
std::optional<std::string> sequence(std::span<const std::string> words) {
  std::vector<std::int64_t> given;
  for (const std::string& word : words) {
    const auto n = whole(word);
    if (!n || *n > INT32_MAX || *n < INT32_MIN) return std::nullopt;
    given.push_back(*n);
  }
  if (given.empty() || given.size() > 3) return std::nullopt;
  const std::int64_t first = given.size() == 1 ? 1 : given.front();
  const std::int64_t step = given.size() == 3 ? given[1] : 1;
  const std::int64_t last = given.back();
  if (step == 0) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (std::int64_t n = first; step > 0 ? n <= last : n >= last; n += step) {
    if (numbers.size() == kMostNumbers) return std::nullopt;
    numbers.push_back(n);
  }
  return fmt::format("{}", fmt::join(numbers, "\n"));
}

// "expr A / B": each number and sign is a word of its own, else expr prints what it was given
// (expr(1)).
std::optional<std::string> sum(std::span<const std::string> words) {
  static constexpr std::array<std::string_view, 7> kSigns{"+", "-", "*", "/", "%", "(", ")"};
  std::string all;
  for (const std::string& word : words) {
    const bool sign = std::find(kSigns.begin(), kSigns.end(), word) != kSigns.end();
    if (!sign && !whole(word)) return std::nullopt;
    all += " " + word;
  }
  const auto value = shell_arithmetic(all);
  return value ? std::optional(fmt::format("{}", *value)) : std::nullopt;
}

}  // namespace

std::optional<std::string> output_of(std::span<const std::string> command) {
  if (command.empty()) return std::nullopt;
  if (command.front() == "seq") return sequence(command.subspan(1));
  if (command.front() == "expr") return sum(command.subspan(1));
  return std::nullopt;
}

}  // namespace qplan
