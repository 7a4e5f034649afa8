#include "planner/frameworks/readers/arguments.h"

#include <algorithm>

namespace qplan {
namespace {

// "-1" and "-0.5" are values.
bool is_flag(const ShellWord& word) {
  return word.text.size() > 1 && word.text[0] == '-' &&
         !(word.text[1] >= '0' && word.text[1] <= '9') && word.text[1] != '.';
}

const KnownOption* find(std::span<const OptionList* const> lists, std::string_view flag) {
  for (const OptionList* const list : lists) {
    if (const KnownOption* const known = list->find(flag)) return known;
  }
  return nullptr;
}

std::size_t most_values(const KnownOption* known, std::size_t unknown) {
  if (known == nullptr || known->arity == "+" || known->arity == "*") return unknown;
  return known->arity == "?" ? 1 : static_cast<std::size_t>(std::stoul(known->arity));
}

}  // namespace

Settings read_arguments(std::span<const ShellWord> words,
                        std::span<const OptionList* const> lists) {
  Settings settings;
  for (std::size_t at = 0; at < words.size();) {
    const ShellWord& flag = words[at++];
    if (!is_flag(flag)) continue;
    Setting setting{flag.text, true, flag.place, flag.span, {}, flag.resolved, flag.span};
    setting.there = flag.resolved;
    const std::size_t equals = flag.text.find('=');
    if (equals != std::string::npos) {
      setting.key = flag.text.substr(0, equals);
      setting.value = flag.text.substr(equals + 1);
      if (flag.span.end > 0) {
        setting.name.end = flag.span.begin + equals;
        setting.text = {setting.name.end + 1, flag.span.end};
      }
      settings.add(std::move(setting));
      continue;
    }
    std::size_t end = at;
    while (end < words.size() && !is_flag(words[end])) ++end;
    const KnownOption* const known = find(lists, flag.text);
    const std::size_t count = std::min(most_values(known, end - at), end - at);
    for (std::size_t i = at + count; i < end && known != nullptr; ++i) {
      // It may be an option that takes what stands behind it.
      if (!words[i].resolved && !words[i].text.empty()) break;
      if (words[i].text.empty()) continue;
      setting.extra += (setting.extra.empty() ? "" : " ") + words[i].text;
    }
    if (count > 0) {
      Json values = Json::array();
      bool in_place = flag.span.end > 0;
      for (std::size_t i = at; i < at + count; ++i) {
        values.push_back(words[i].text);
        setting.resolved = setting.resolved && words[i].resolved;
        in_place = in_place && words[i].span.end > words[i].span.begin &&
                   words[i].place.file == flag.place.file;
      }
      if (in_place) {
        setting.text = {words[at].span.begin, words[at + count - 1].span.end};
        setting.whole.end = setting.text.end;
      }
      setting.value = count == 1 ? values[0] : values;
      at += count;
    }
    settings.add(std::move(setting));
  }
  return settings;
}

}  // namespace qplan
