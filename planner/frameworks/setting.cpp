#include "planner/frameworks/setting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/plain_number.h"

namespace qplan {
namespace {

std::optional<double> try_number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const std::string text = plain_number(value.get_ref<const std::string&>());
  double number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

void Settings::append(const Settings& others) {
  all_.insert(all_.end(), others.begin(), others.end());
}

const Setting* Settings::find(std::string_view key) const {
  const auto found = std::find_if(all_.rbegin(), all_.rend(),
                                  [&](const Setting& setting) { return setting.key == key; });
  return found == all_.rend() ? nullptr : &*found;
}

bool Settings::has_section(std::string_view prefix) const {
  return std::any_of(all_.begin(), all_.end(),
                     [&](const Setting& setting) { return setting.key.starts_with(prefix); });
}

std::int64_t whole_of(const Json& value, std::int64_t low, std::int64_t high) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  const auto number = try_number(value);
  if (!number || std::floor(*number) != *number || std::abs(*number) > kExact) {
    throw Error(fmt::format("must be a whole number, not '{}'", shown(text_of(value))));
  }
  const auto whole = static_cast<std::int64_t>(*number);
  if (whole < low || whole > high) {
    throw Error(fmt::format("must be a whole number from {} to {}, not {}", low, high, whole));
  }
  return whole;
}

int degree_of(const Json& value) {
  return static_cast<int>(whole_of(value, 1, 1 << 20));
}

double number_of(const Json& value) {
  const auto number = try_number(value);
  if (!number) throw Error(fmt::format("must be a number, not '{}'", shown(text_of(value))));
  return *number;
}

bool truth_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  const std::string word = lower_case(text_of(value));
  if (word == "true" || word == "1" || word == "yes") return true;
  if (word == "false" || word == "0" || word == "no" || word == "null") return false;
  throw Error(fmt::format("must be true or false, not '{}'", shown(word)));
}

std::string text_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) return fmt::format("{}", fmt::join(list_of(value), " "));
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  return value.dump();
}

std::vector<std::string> list_of(const Json& value) {
  if (!value.is_array()) return {text_of(value)};
  std::vector<std::string> list;
  for (const Json& item : value) list.push_back(text_of(item));
  return list;
}

std::string first_of(const Json& value) {
  const auto list = list_of(value);
  return list.empty() ? "" : list.front();
}

bool same_value(const Json& a, const Json& b) {
  const auto x = try_number(a), y = try_number(b);
  if (x && y) return *x == *y;
  return lower_case(text_of(a)) == lower_case(text_of(b));
}

}  // namespace qplan
