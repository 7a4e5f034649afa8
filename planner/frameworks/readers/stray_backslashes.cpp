#include "planner/frameworks/readers/stray_backslashes.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "models/error.h"

namespace qplan {
namespace {

// Whether a word begins with a backslash of the file, or with the blank behind one. Quotes keep
// theirs: what stands in them is an argument, however odd.
bool is_stray(const ShellWord& word, const std::vector<ConfigText>& texts) {
  if (word.span.end <= word.span.begin) return false;
  const auto file = std::find_if(texts.begin(), texts.end(),
                                 [&](const ConfigText& f) { return f.name == word.place.file; });
  if (file == texts.end()) return false;
  if (word.text == "\\") return true;  // of a value in quotes, which falls apart at its blanks
  const bool blank = word.text.starts_with(' ') || word.text.starts_with('\t');
  return blank && word.span.begin > 0 && word.span.begin < file->text.size() &&
         file->text[word.span.begin - 1] == '\\';
}

// `strays` are the words that begin with one, at least one.
Finding finding_of(const std::vector<const ShellWord*>& strays, Correction fix) {
  const ShellWord& first = *strays.front();
  const std::string also = strays.size() == 1
                               ? std::string()
                               : fmt::format("; so do {} more of this command", strays.size() - 1);
  return {
      Severity::error,
      "stray_backslash",
      first.place,
      first.text == "\\"
          ? fmt::format("a backslash within a line continues nothing: it is an argument of its "
                        "own here{}",
                        also)
          : fmt::format("a backslash within a line continues nothing: the blank behind it begins "
                        "the argument {}{}",
                        shown("'" + first.text + "'"), also),
      "one option a line with the backslash last, or one line without backslashes",
      "bash(1), quoting",
      std::move(fix)};
}

}  // namespace

ShellCommand without_strays(ShellCommand command, const std::vector<ConfigText>& texts,
                            std::vector<Finding>& findings) {
  std::vector<const ShellWord*> strays;
  Correction fix;
  for (const ShellWord& word : command.words) {
    if (!is_stray(word, texts)) continue;
    strays.push_back(&word);
    const std::size_t at = word.span.begin - (word.text == "\\" ? 0 : 1);
    fix.push_back({word.place.file, at, at + 1, ""});
  }
  if (strays.empty()) return command;
  findings.push_back(finding_of(strays, std::move(fix)));
  for (ShellWord& word : command.words) {
    if (!is_stray(word, texts)) continue;
    word.text.erase(0, 1);
    ++word.span.begin;
  }
  std::erase_if(command.words, [](const ShellWord& word) {
    return word.text.empty() && word.resolved && word.span.end > 0;
  });
  return command;
}

}  // namespace qplan
