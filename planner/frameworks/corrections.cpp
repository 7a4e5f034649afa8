#include <algorithm>
#include <string_view>

#include "planner/frameworks/scene.h"

namespace qplan {
namespace {

std::string last_name(const std::string& key) {
  const std::size_t dot = key.rfind('.');
  return dot == std::string::npos ? key : key.substr(dot + 1);
}

const std::string* text_of_file(const Scene& scene, const std::string& name) {
  for (const ConfigText& file : scene.files.texts) {
    if (file.name == name) return &file.text;
  }
  return nullptr;
}

// Whether a quote may stand behind a value, which would take in what is written there: its own
// begins further from the key than one blank or '='.
bool ends_in_quotes(const Setting& setting) {
  const bool has_value = setting.text.end > setting.text.begin;
  return has_value && (setting.value.is_array() ||
                       setting.text.begin != setting.whole.begin + setting.key.size() + 1);
}

// A flag, then its value behind blanks, '=', a quote or a continued line: not one that a variable
// holds elsewhere, or that arithmetic made. Files of keys have each in one piece.
bool in_one_piece(const Scene& scene, const Setting& s) {
  if (!s.key.starts_with("--")) return true;
  const std::size_t key_end = s.whole.begin + s.key.size();
  if (s.value.is_boolean() && s.whole.end == key_end) return true;
  const std::string* const text = text_of_file(scene, s.place.file);
  const bool has_value = s.text.begin >= key_end && s.text.end > s.text.begin;
  if (text == nullptr || !has_value || s.text.end > text->size()) return false;
  const auto between = std::string_view(*text).substr(key_end, s.text.begin - key_end);
  const auto value = std::string_view(*text).substr(s.text.begin, s.text.end - s.text.begin);
  return between.find_first_not_of(" \t\r\n\\=\"'") == std::string_view::npos &&
         value.find('$') == std::string_view::npos;
}

}  // namespace

std::vector<Edit> with_value(const Setting& setting, const std::string& value) {
  if (setting.text.end <= setting.text.begin) return {};
  return {{setting.place.file, setting.text.begin, setting.text.end, value}};
}

std::vector<Edit> with_key(const ConfigPart& part, const Setting& setting, const std::string& key) {
  if (setting.whole.end <= setting.whole.begin) return {};
  const bool json = part.dialect == Dialect::ds_config;
  const std::string before = json                            ? '"' + last_name(setting.key) + '"'
                             : setting.key.starts_with("--") ? setting.key
                                                             : last_name(setting.key);
  const std::string after = json                    ? '"' + last_name(key) + '"'
                            : key.starts_with("--") ? key
                                                    : last_name(key);
  return {{setting.place.file, setting.whole.begin, setting.whole.begin + before.size(), after}};
}

std::vector<Edit> removed(const Scene& scene, const ConfigPart& part, const Setting& setting) {
  if (setting.whole.end <= setting.whole.begin || !in_one_piece(scene, setting)) return {};
  std::size_t begin = setting.whole.begin, end = setting.whole.end;
  const std::string* const text = text_of_file(scene, setting.place.file);
  if (text == nullptr) return {};
  const auto blank = [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; };
  if (part.dialect == Dialect::ds_config) {
    // A member goes with one of its commas.
    std::size_t after = end;
    while (after < text->size() && blank((*text)[after])) ++after;
    if (after < text->size() && (*text)[after] == ',') {
      end = after + 1;
      while (end < text->size() && blank((*text)[end])) ++end;
    } else {
      while (begin > 0 && blank((*text)[begin - 1])) --begin;
      if (begin > 0 && (*text)[begin - 1] == ',') --begin;
    }
  }
  return {{setting.place.file, begin, end, ""}};
}

std::vector<Edit> added(const Scene& scene, const ConfigPart& part, const std::string& arguments) {
  for (const Setting& setting : part.settings) {
    if (!setting.key.starts_with("--") || setting.whole.end <= setting.whole.begin) continue;
    if (ends_in_quotes(setting) || !in_one_piece(scene, setting)) continue;
    return {{setting.place.file, setting.whole.end, setting.whole.end, ' ' + arguments}};
  }
  return {};
}

}  // namespace qplan
