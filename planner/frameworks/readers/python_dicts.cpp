#include "planner/frameworks/readers/python_dicts.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "models/ascii.h"
#include "models/error.h"

namespace qplan {
namespace {

// Behind the quote that ends the string which begins at `at`, whose JSON is added to `out`.
std::size_t add_python_string(std::string_view text, std::size_t at, std::string& out) {
  const char quote = text[at++];
  out += '"';
  while (at < text.size() && text[at] != quote) {
    if (text[at] == '\\' && at + 1 < text.size()) out += text[at++];
    if (text[at] == '"') out += '\\';
    out += text[at++];
  }
  out += '"';
  return at + 1;
}

std::string as_json_text(std::string_view text) {
  constexpr std::array<std::array<std::string_view, 2>, 3> kWords{
      {{"True", "true"}, {"False", "false"}, {"None", "null"}}};
  std::string json;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '\'' || text[at] == '"') {
      at = add_python_string(text, at, json);
      continue;
    }
    std::size_t end = at;
    while (end < text.size() && is_letter(text[end])) ++end;
    const std::string_view word = text.substr(at, end - at);
    const auto literal =
        std::find_if(kWords.begin(), kWords.end(), [&](const auto& row) { return row[0] == word; });
    if (word.empty()) {
      const char c = text[at++];
      json += c == '(' ? '[' : c == ')' ? ']' : c;
      continue;
    }
    json += literal == kWords.end() ? word : (*literal)[1];
    at = end;
  }
  return json;
}

}  // namespace

Settings dictionary_settings(const PythonArgument& argument, const std::string& section) {
  Settings settings;
  if (!argument.text.starts_with('{')) return settings;
  try {
    const std::string json = as_json_text(argument.text);
    for (Setting setting : read_json_settings(json, argument.place.file).settings) {
      settings.add({section + setting.key,
                    std::move(setting.value),
                    argument.place,
                    {},
                    {},
                    true,
                    {},
                    Syntax::python});
    }
  } catch (const Error&) {
    return {};  // an expression
  }
  return settings;
}

}  // namespace qplan
