#include "planner/frameworks/readers/wrappers.h"

#include <algorithm>
#include <array>

#include "planner/frameworks/readers/launch.h"
#include "planner/frameworks/readers/recognise.h"

namespace qplan {

bool is_among(std::span<const std::string_view> list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

std::size_t behind_wrappers(std::span<const ShellWord> words) {
  static constexpr std::array<std::string_view, 8> kWrappers{
      "nsys", "ncu", "numactl", "nice", "time", "timeout", "uv", ""};  // "": of an empty array
  if (!is_among(kWrappers, base_name(words.front().text)) && words.front().resolved) return 0;
  const auto launcher = std::find_if(words.begin(), words.end(),
                                     [](const ShellWord& word) { return is_launcher(word.text); });
  return launcher == words.end() ? 0 : static_cast<std::size_t>(launcher - words.begin());
}

std::span<const ShellWord> behind_prefixes(std::span<const ShellWord> words) {
  static constexpr std::array<std::string_view, 4> kPrefixes{"exec", "nohup", "env", "sudo"};
  const auto first = std::find_if(words.begin(), words.end(), [](const ShellWord& word) {
    return !is_among(kPrefixes, word.text);
  });
  return {first, words.end()};
}

std::vector<ShellWord> without_uv(std::span<const ShellWord> words) {
  if (words.size() < 3 || words[0].text != "uv" || words[1].text != "run") return {};
  if (std::any_of(words.begin() + 2, words.end(),
                  [](const ShellWord& word) { return is_launcher(word.text); })) {
    return {};
  }
  const auto program = std::find_if(words.begin() + 2, words.end(), [](const ShellWord& word) {
    return word.text == "-m" || word.text.ends_with(".py");
  });
  if (program == words.end()) return {};
  std::vector<ShellWord> plain{words[0]};
  plain.front().text = "python";
  plain.front().span = {};
  plain.insert(plain.end(), program, words.end());
  return plain;
}

}  // namespace qplan
