#include "planner/frameworks/shared_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "planner/frameworks/shell/text.h"
#include "planner/frameworks/text_places.h"

namespace qplan {
namespace {

// How often a name stands in `line` by itself.
std::size_t count_name(std::string_view line, std::string_view name) {
  std::size_t count = 0;
  for (std::size_t at = line.find(name); at != std::string_view::npos;
       at = line.find(name, at + name.size())) {
    const std::size_t end = at + name.size();
    const bool begins = at == 0 || !is_shell_name(line[at - 1]);
    count += begins && (end == line.size() || !is_shell_name(line[end])) ? 1U : 0U;
  }
  return count;
}

// Uses of a variable beside the line that sets it.
std::size_t uses_of(const Scene& scene, std::string_view name, const std::string& text,
                    Span definition) {
  std::size_t uses = 0;
  for (const ConfigText& file : scene.files.texts) {
    for (std::size_t at = 0; at < file.text.size(); at = next_line(file.text, at)) {
      if (&file.text == &text && at == definition.begin) continue;
      const std::string_view line = cut(file.text, line_at(file.text, at));
      const std::size_t first = line.find_first_not_of(kBlanks);
      if (first == std::string_view::npos || line[first] == '#') continue;
      // What is made of it for another variable may be used anywhere.
      std::size_t word = first;
      while (word < line.size() && is_shell_name(line[word])) ++word;
      const bool assigns = word > first && word < line.size() && line[word] == '=';
      uses += count_name(line, name) * (assigns ? 2U : 1U);
    }
  }
  return uses;
}

}  // namespace

std::string other_reader(const Scene& scene, const Setting& s) {
  const auto shares = [&](const Setting& other) {
    return other.place.file == s.place.file && other.name.begin != s.name.begin &&
           other.key != s.key && other.text.begin < s.text.end && s.text.begin < other.text.end;
  };
  const auto among = [&](const Settings& settings) {
    const auto found = std::find_if(settings.begin(), settings.end(), shares);
    return found == settings.end() ? std::string() : found->key;
  };
  for (const ConfigPart& part : scene.files.parts) {
    if (std::string key = among(part.settings); !key.empty()) return key;
  }
  for (const Launch& launch : scene.files.launches) {
    if (std::string key = among(launch.options); !key.empty()) return key;
  }
  return "";
}

std::string why_keep_variable(const Scene& scene, const std::string& text, const Setting& s) {
  const Span line = line_at(text, s.text.begin);
  const std::string_view before = cut(text, {line.begin, s.text.begin});
  const std::size_t word = before.find_first_not_of(kBlanks);
  std::string_view name;
  for (std::size_t equals = before.find('='); equals != std::string_view::npos && name.empty();
       equals = before.find('=', equals + 1)) {
    std::size_t from = equals;
    while (from > 0 && is_shell_name(before[from - 1])) --from;
    const bool whole_word = from == 0 || before[from - 1] == ' ' || before[from - 1] == '\t';
    if (from < equals && whole_word) name = before.substr(from, equals - from);
  }
  if (name.empty()) return "its value stands elsewhere, where it may mean more";
  if (before.substr(word).starts_with("export") || before.substr(word).starts_with("declare")) {
    return fmt::format("{} holds the value and is exported, so that other programs may read it",
                       name);
  }
  // "TP=${TP:-4}" names it twice.
  const std::size_t here = count_name(cut(text, line), name);
  const bool its_default = before.find(fmt::format("${{{}", name)) != std::string_view::npos;
  const bool more_here = here > (its_default ? 2U : 1U);
  if (more_here || uses_of(scene, name, text, line) > 1) {
    return fmt::format("{} holds the value, and other lines of the script use it too", name);
  }
  return "";
}

}  // namespace qplan
