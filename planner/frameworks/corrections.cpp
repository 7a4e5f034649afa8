#include <algorithm>

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
  if (setting.whole.end <= setting.whole.begin) return {};
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

std::vector<Edit> added(const ConfigPart& part, const std::string& arguments) {
  for (const Setting& setting : part.settings) {
    if (!setting.key.starts_with("--") || setting.whole.end <= setting.whole.begin) continue;
    if (ends_in_quotes(setting)) continue;
    return {{setting.place.file, setting.whole.end, setting.whole.end, ' ' + arguments}};
  }
  return {};
}

}  // namespace qplan
