#include "planner/frameworks/spelled_values.h"

#include <algorithm>
#include <cctype>

#include "models/json.h"

namespace qplan {
namespace {

bool is_plain(std::string_view text, std::string_view more) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           more.find(c) != std::string_view::npos;
  });
}

std::string in_quotes(const std::string& text, char quote) {
  std::string result(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') result += '\\';
    result += c;
  }
  return result + quote;
}

}  // namespace

bool is_number(const std::string& text) {
  const Json read = Json::parse(text, nullptr, false);
  return !read.is_discarded() && read.is_number();
}

std::string in_yaml(const std::string& value, std::string_view raw) {
  const char quote = raw.empty() ? '\0' : raw.front();
  if (quote == '\'' && value.find('\'') == std::string::npos) return "'" + value + "'";
  const bool plain = is_plain(value, "_./+-") && value.front() != '-';
  return quote == '"' || !(plain || is_number(value)) ? in_quotes(value, '"') : value;
}

std::string in_json(const std::string& value, std::string_view raw) {
  const bool literal = value == "true" || value == "false" || is_number(value);
  const bool quoted = !raw.empty() && raw.front() == '"';
  return literal && !quoted ? value : in_quotes(value, '"');
}

std::string in_python(const std::string& value, std::string_view raw) {
  const char quote = raw.empty() ? '\0' : raw.front();
  if (quote == '"' || quote == '\'') return in_quotes(value, quote);
  if (value == "true") return "True";
  if (value == "false") return "False";
  return is_number(value) ? value : in_quotes(value, '"');
}

std::optional<std::string> in_words(const std::string& value) {
  if (is_plain(value, "_-+./:=,@%")) return value;
  if (value.empty() || value.find_first_of("'\n") != std::string::npos) return std::nullopt;
  return "'" + value + "'";
}

}  // namespace qplan
