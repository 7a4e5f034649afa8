#include "planner/frameworks/option_value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>

#include "models/ascii.h"
#include "models/text.h"
#include "planner/frameworks/plain_number.h"

namespace qplan {
namespace {

// Digits, in which Python allows single underscores.
bool are_digits(std::string_view text) {
  if (text.empty() || !is_digit(text.front()) || !is_digit(text.back())) return false;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (!is_digit(text[i]) && !(text[i] == '_' && is_digit(text[i - 1]))) return false;
  }
  return true;
}

std::string_view without_sign(std::string_view text) {
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  return text;
}

// As Python's int() and float() read text.
std::optional<double> python_number(std::string_view text, bool whole) {
  const std::string_view bare = without_sign(trimmed(text));
  if (whole && !are_digits(bare)) return std::nullopt;
  const std::string word = lower_case(bare);
  if (!whole && (word == "inf" || word == "infinity" || word == "nan")) return INFINITY;
  const std::string plain = plain_number(bare);
  if (plain.empty() || (!is_digit(plain.front()) && plain.front() != '.')) return std::nullopt;
  double number = 0;
  const char* const end = plain.data() + plain.size();
  const auto [stop, code] = std::from_chars(plain.data(), end, number);
  if (stop != end || (code != std::errc{} && code != std::errc::result_out_of_range)) {
    return std::nullopt;
  }
  return !text.empty() && text.front() == '-' ? -number : number;
}

std::optional<double> number_in(const Json& value, bool whole, ValueReader reader) {
  const bool textual = reader == ValueReader::argparse || reader == ValueReader::trainer;
  if (value.is_boolean()) {
    // True is 1 to Python and to pydantic.
    if (textual || reader == ValueReader::yaml) return std::nullopt;
    return value.get<bool>() ? 1 : 0;
  }
  if (value.is_number()) {
    const double number = value.get<double>();
    const bool fraction = std::floor(number) != number;
    if (whole && (fraction || (reader == ValueReader::python && value.is_number_float()))) {
      return std::nullopt;
    }
    return number;
  }
  if (!value.is_string() || reader == ValueReader::python) return std::nullopt;
  return python_number(value.get_ref<const std::string&>(), whole);
}

bool is_truth(const Json& value, ValueReader reader) {
  if (value.is_boolean()) return true;
  if (reader == ValueReader::python) return false;
  static constexpr std::array<std::string_view, 12> kWords{
      "true", "false", "yes", "no", "t", "f", "y", "n", "1", "0", "on", "off"};
  // transformers has no words for on and off (hf_argparser.py, string_to_bool).
  const std::size_t count = reader == ValueReader::trainer ? 10 : kWords.size();
  const auto words = std::span<const std::string_view>(kWords).first(count);
  const std::string word = lower_case(text_of(value));
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string range_of(const KnownOption& known) {
  if (std::isfinite(known.low) && std::isfinite(known.high)) {
    return fmt::format(" from {} to {}", known.low, known.high);
  }
  if (std::isfinite(known.low)) return fmt::format(" of at least {}", known.low);
  return std::isfinite(known.high) ? fmt::format(" of at most {}", known.high) : "";
}

std::string number_wanted(const KnownOption& known, const Json& value, ValueReader reader) {
  const bool whole = known.type == "int";
  const auto number = number_in(value, whole, reader);
  const bool within = number && *number >= known.low && *number <= known.high;
  if (within) return "";
  const bool digits = reader == ValueReader::argparse || reader == ValueReader::trainer;
  return fmt::format("{}{}{}", whole ? "a whole number" : "a number", range_of(known),
                     whole && digits ? ", in digits" : "");
}

}  // namespace

std::string wanted_instead(const KnownOption& known, const Json& value, ValueReader reader) {
  if (value.is_null()) return known.never_null ? "a value, not null" : "";
  if (!known.choices.empty()) {
    const bool any_case = known.type == "any case";
    const auto spelled = [&](const std::string& word) {
      return any_case ? lower_case(word) : word;
    };
    const std::string text = spelled(text_of(value));
    const bool choice = std::any_of(known.choices.begin(), known.choices.end(),
                                    [&](const std::string& c) { return spelled(c) == text; });
    return choice ? "" : fmt::format("one of {}", fmt::join(known.choices, ", "));
  }
  if (known.type == "int" || known.type == "float") return number_wanted(known, value, reader);
  if (known.type == "dict") return "set in Python: no argument is a dictionary";
  if (known.type == "steps") {  // training_args.py (__post_init__)
    const auto number = number_in(value, false, reader);
    // Nothing is logged every 0 steps; to evaluate and to save, 0 means never.
    const bool never = number && *number == 0 && known.spellings.front() != "--logging_steps";
    const bool fine =
        number && (never || *number != 0) && (*number < 1 || std::floor(*number) == *number);
    return fine ? "" : "a whole number of steps, or a share of them below 1";
  }
  // argparse's bool() takes any text for true.
  if (known.type == "bool" && reader != ValueReader::argparse && !is_truth(value, reader)) {
    return "true or false";
  }
  if (known.type == "str" && (reader == ValueReader::json || reader == ValueReader::python) &&
      !value.is_string()) {
    return "a text in quotes";
  }
  if (known.type == "list" && !value.is_array()) return "a list";
  if (known.type == "block" && !value.is_object()) return "a block of keys";
  return "";
}

}  // namespace qplan
