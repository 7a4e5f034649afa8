#include "planner/frameworks/shell/text.h"

#include <algorithm>
#include <utility>

#include "models/ascii.h"

namespace qplan {

std::string plain(const ShellText& text) {
  std::string result;
  for (const ShellLetter& letter : text) result += letter.c;
  return result;
}

bool is_resolved(const ShellText& text) {
  return std::all_of(text.begin(), text.end(),
                     [](const ShellLetter& l) { return l.certainty == Certainty::known; });
}

bool is_shell_name(char c) {
  return is_name(c);
}

bool is_shell_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

// ---- sources ----

std::uint16_t ShellSources::add(const std::string& name, std::string_view text) {
  File file{name, std::string(text), {}};
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') file.line_ends.push_back(i);
  }
  files_.push_back(std::move(file));
  return static_cast<std::uint16_t>(files_.size() - 1);
}

Place ShellSources::place(std::uint16_t file, std::size_t offset) const {
  const auto& ends = files_[file].line_ends;
  const auto line = std::lower_bound(ends.begin(), ends.end(), offset) - ends.begin();
  return {files_[file].name, static_cast<int>(line) + 1};
}

ShellWord ShellSources::word(const ShellText& text) const {
  ShellWord word;
  word.text = plain(text);
  word.resolved = is_resolved(text);
  if (text.empty()) return word;
  word.place = place(text.front().file, text.front().at);
  const ShellLetter first = text.front();
  const std::string& written = files_[first.file].text;
  bool together = true;
  for (std::size_t i = 0; i < text.size() && together; ++i) {
    const ShellLetter& l = text[i];
    together = l.file == first.file && l.at == first.at + i && l.at < written.size() &&
               written[l.at] == l.c;  // not so of a digit that arithmetic made
  }
  if (together) word.span = {text.front().at, text.back().at + 1};
  return word;
}

// ---- cursor ----

char ShellCursor::peek(std::size_t ahead) const {
  return at + ahead < text.size() ? text[at + ahead] : '\0';
}

std::size_t ShellCursor::line_end() const {
  return std::min(text.find('\n', at), text.size());
}

ShellLetter ShellCursor::letter(std::size_t where) const {
  const bool inside = where < text.size();
  if (letters == nullptr) return {inside ? text[where] : '\0', file, Certainty::known, where};
  if (inside) return (*letters)[where];
  const ShellLetter end = letters->empty() ? ShellLetter{0, file} : letters->back();
  return {'\0', end.file, Certainty::known, end.at + 1};
}

bool ShellCursor::at_unknown() const {
  return letters != nullptr && !at_end() && (*letters)[at].certainty == Certainty::unknown;
}

ShellLetter ShellCursor::take() {
  return letter(at++);
}

bool ShellCursor::at_operator() const {
  constexpr std::string_view kOperators = "&|<>()";
  return !at_end() && kOperators.find(peek()) != std::string_view::npos;
}

std::vector<ShellLetter> ShellCursor::take_operator() {
  std::vector<ShellLetter> taken{take()};
  while (peek() == taken[0].c && taken[0].c != '(' && taken[0].c != ')') {
    taken.push_back(take());
  }
  return taken;
}

void ShellCursor::skip_line() {
  at = std::min(line_end() + 1, text.size());
}

namespace {

// Commands within commands that are looked into at most, which may nest.
constexpr int kMostNested = 200;

std::size_t behind_brackets(std::string_view text, std::size_t at, char open, char close,
                            bool quotes, int& nested);

// Behind the quote that closes the one at `at`, or the text's end. Commands between double quotes
// have quotes of their own.
std::size_t behind_quote(std::string_view text, std::size_t at, int& nested) {
  const char quote = text[at++];
  while (at < text.size() && text[at] != quote) {
    const bool commands = quote == '"' && text.substr(at).starts_with("$(");
    const std::size_t end = commands && nested-- > 0
                                ? behind_brackets(text, at + 1, '(', ')', true, nested)
                                : std::string_view::npos;
    at = end != std::string_view::npos ? end : at + (quote == '"' && text[at] == '\\' ? 2U : 1U);
  }
  return std::min(at + 1, text.size());
}

// Behind the bracket that closes the one at `at`; npos: none does.
std::size_t behind_brackets(std::string_view text, std::size_t at, char open, char close,
                            bool quotes, int& nested) {
  int open_ones = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (quotes && (c == '"' || c == '\'')) {
      at = behind_quote(text, at, nested);
      continue;
    }
    ++at;
    if (c == '\\') {
      ++at;
    } else if (c == open) {
      ++open_ones;
    } else if (c == close && --open_ones == 0) {
      return at;
    }
  }
  return std::string_view::npos;
}

}  // namespace

bool ShellCursor::skip_brackets(char open, char close) {
  // A bracket in quotes closes none; where quotes hide the end, as in a remark, they count not.
  int nested = kMostNested;
  std::size_t end =
      open == '(' ? behind_brackets(text, at, open, close, true, nested) : std::string::npos;
  if (end == std::string::npos) end = behind_brackets(text, at, open, close, false, nested);
  at = std::min(end, text.size());
  return end != std::string::npos;
}

std::vector<Edit> edit_of(const ShellSources& sources, const ShellCursor& in, std::size_t begin,
                          std::size_t end, std::string text) {
  const ShellLetter first = in.letter(begin);
  for (std::size_t i = begin; i < end; ++i) {
    const ShellLetter l = in.letter(i);
    if (l.file != first.file || l.at != first.at + (i - begin)) return {};
  }
  return {{sources.name(first.file), first.at, first.at + (end - begin), std::move(text)}};
}

}  // namespace qplan
