// Commands of a shell script: those that change what is read (source, set, unset, let, read), and
// those that are kept with their words. A backslash that was forgotten between two of them is
// found.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/error.h"
#include "planner/frameworks/shell/script_reader.h"

namespace qplan {
namespace {

// That set variables as they run.
constexpr std::array<std::string_view, 3> kReaders{"read", "printf", "mapfile"};

// "a.b.c=d", "+a.b=c", "~a.b": what Hydra takes, and no shell.
bool is_override(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of("+~"), word.size()));
  const std::size_t end = std::min(word.find('='), word.size());
  const std::string_view key = word.substr(0, end);
  const std::size_t dot = key.find('.');
  if (end == word.size() || dot == 0 || dot == std::string_view::npos) return false;
  return std::all_of(key.begin(), key.end(),
                     [](char c) { return is_shell_name(c) || c == '.' || c == '@'; });
}

// As "eval" joins its words: by blanks.
ShellText joined(std::span<const ShellText> words) {
  ShellText text;
  for (const ShellText& word : words) {
    if (!text.empty()) {
      text.push_back(text.back());
      text.back().c = ' ';
      text.back().certainty = Certainty::known;
    }
    text.insert(text.end(), word.begin(), word.end());
  }
  return text;
}

// What "read" makes of the backslashes of its input.
ShellText without_escapes(const ShellText& text) {
  ShellText result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escapes =
        text[i].c == '\\' && text[i].certainty != Certainty::unknown && i + 1 < text.size();
    if (escapes && text[++i].c == '\n') continue;
    result.push_back(text[i]);
  }
  return result;
}

}  // namespace

// `words` that stand in `span` of the text, with a here-document's `input`.
void ScriptReader::run(ShellCommand command, std::span<const ShellText> words, Span span,
                       const ShellText& input) {
  if (words.empty() || test_result(words)) return;
  if (sets_next_) {
    sets_next_ = false;
    return set_unknown(words[0]);
  }
  const std::string first = plain(words[0]);
  if (first == "eval") return read_again(joined(words.subspan(1)));
  const bool continues = lost_continuation(first, span.begin);
  command_end_ = span.end;
  command_remark_ = remark_at_;
  lost_end_.reset();
  if (continues) {
    for (const ShellText& word : words) script_.commands.back().words.push_back(source(word));
    return;
  }
  command_begin_ = span.begin;
  if (first == "source" || first == ".") {
    if (words.size() > 1) include(words[1]);
    return;
  }
  if (first == "shift") return forget_arguments();
  if (first == "set") {
    if (words.size() > 1 && plain(words[1]) == "--") {
      forget_arguments();
      set_arguments(words.subspan(2));
    }
    return;
  }
  if (first == "unset") {
    for (const ShellText& word : words.subspan(1)) {
      const auto known = variables_.find(plain(word));
      if (known == variables_.end()) continue;
      branches_.reached() == Truth::yes ? void(variables_.erase(known)) : set_unknown(word);
    }
    return;
  }
  if (first == "let") {
    for (const ShellText& word : words.subspan(1)) {
      if (!word.empty()) set_by_arithmetic(plain(word), span.begin);
    }
    return;
  }
  if (call(first, words)) return;
  if (first == "export") export_names(words.subspan(1));
  if (first == "read" && read_input(words, input)) return;
  if (is_in(kReaders, first)) {
    for (const ShellText& word : words.subspan(1)) set_unknown(word);
    return;
  }
  for (const ShellText& word : words) command.words.push_back(source(word));
  script_.commands.push_back(std::move(command));
  start_shell(words, input);
}

// A line that begins with an argument, directly below a command with arguments of its kind, or
// with a program that may take them: the backslash between them was forgotten.
bool ScriptReader::lost_continuation(const std::string& first, std::size_t begin) {
  const bool flag = first.starts_with("--");
  if ((!flag && !is_override(first)) || script_.commands.empty()) return false;
  if (!command_end_ || *command_end_ + 1 != begin) return false;
  const std::vector<ShellWord>& before = script_.commands.back().words;
  const bool has_others =
      !before.front().text.starts_with("-") &&
      std::any_of(before.begin(), before.end(), [&](const ShellWord& word) {
        if (flag) return word.text.starts_with("--");
        return is_override(word.text) || word.text == "-m" || word.text.ends_with(".py");
      });
  if (!has_others) return false;
  script_.findings.push_back({Severity::error, "missing_continuation",
                              sources_.place(in_.letter(lost_end_.value_or(*command_end_))),
                              fmt::format("{}, so the command ends here and the line below, which "
                                          "begins with {}, is a command of its own",
                                          why_it_ends(), shown(first)),
                              lost_end_ ? "end the line with a backslash, and put the remark "
                                          "above the command"
                              : stands_alone(command_remark_) ? "put the remark above the command"
                                                              : "end the line with a backslash",
                              "bash(1), quoting", continued_line()});
  return true;
}

// Up to `end`, with a line of its own below a command: of several the first is where they begin. Of
// a command whose last line ends without a backslash it may stand among its lines all the same.
void ScriptReader::remark_below(std::size_t end) {
  if (!command_remark_) {
    lost_end_ = command_end_;
    command_remark_ = remark_at_;
  }
  if (stands_alone(command_remark_)) command_end_ = end;
}

// Whether a remark has a line of its own within the command: "--a 1 \", "# remark", "--b 2".
bool ScriptReader::stands_alone(std::optional<std::size_t> remark) const {
  if (!remark) return false;
  const std::size_t line = line_begin(*remark);
  return line > command_begin_ &&
         std::all_of(in_.text.begin() + static_cast<std::ptrdiff_t>(line),
                     in_.text.begin() + static_cast<std::ptrdiff_t>(*remark), is_shell_blank);
}

std::size_t ScriptReader::line_begin(std::size_t at) const {
  return at == 0 ? 0 : in_.text.rfind('\n', at - 1) + 1;  // npos + 1: the first
}

std::string ScriptReader::why_it_ends() const {
  if (!command_remark_) return "no backslash ends the line";
  std::string_view line = in_.text.substr(*command_remark_, *command_end_ - *command_remark_);
  line = line.substr(0, line.find('\n'));
  while (!line.empty() && is_shell_blank(line.back())) line.remove_suffix(1);
  const bool backslash = line.ends_with('\\');
  if (lost_end_) return "no backslash ends the line, and a remark stands below it";
  if (stands_alone(command_remark_)) {
    return backslash ? "a remark stands among the command's lines, and its backslash is part of it"
                     : "a remark stands among the command's lines";
  }
  return backslash ? "the backslash at the end of the line is part of the remark"
                   : "no backslash ends the line";
}

// A backslash at the end of the command's last line; a remark goes above the command.
std::vector<Edit> ScriptReader::continued_line() {
  const std::size_t end = *command_end_;
  if (!command_remark_) return edit_of(sources_, in_, end, end, " \\");
  if (stands_alone(command_remark_)) {
    auto fix = remarks_above();
    if (!lost_end_ || fix.empty()) return fix;
    const auto backslash = edit_of(sources_, in_, *lost_end_, *lost_end_, " \\");
    fix.insert(fix.end(), backslash.begin(), backslash.end());
    return fix;
  }
  std::size_t behind = *command_remark_;
  while (behind > 0 && is_shell_blank(in_.text[behind - 1])) --behind;
  auto fix = edit_of(sources_, in_, behind, end, " \\");
  if (!fix.empty() && in_.letters == nullptr) {
    fix.push_back(words_.remark_above(command_begin_, *command_remark_, end));
  }
  return fix;
}

// Remarks with lines of their own, without the backslashes that continued nothing.
std::vector<Edit> ScriptReader::remarks_above() {
  if (in_.letters != nullptr) return {};
  const std::size_t begin = line_begin(*command_remark_), above = line_begin(command_begin_);
  const std::size_t end = std::min(*command_end_ + 1, in_.text.size());
  const std::size_t indent = in_.text.find_first_not_of(" \t", above) - above;
  std::string moved;
  for (std::size_t at = begin; at < end;) {
    const std::size_t next = std::min(in_.text.find('\n', at), end - 1) + 1;
    std::string_view line = in_.text.substr(at, next - at);
    const bool windows = line.ends_with("\r\n");
    constexpr std::string_view kGone("\\ \t\r\n");
    while (!line.empty() && kGone.find(line.back()) != kGone.npos) line.remove_suffix(1);
    line.remove_prefix(std::min(line.find('#'), line.size()));
    moved += fmt::format("{}{}{}", in_.text.substr(above, indent), line, windows ? "\r\n" : "\n");
    at = next;
  }
  auto fix = edit_of(sources_, in_, begin, end, "");
  const auto insertion = edit_of(sources_, in_, above, above, moved);
  fix.insert(fix.end(), insertion.begin(), insertion.end());
  return fix;
}

// "read -r -d '' X <<END": all of a here-document; without -d its first line, without -r less the
// backslashes that take the next letter as it is, or two lines as one.
bool ScriptReader::read_input(std::span<const ShellText> words, const ShellText& input) {
  bool whole = false, raw = false;
  std::vector<std::string> names;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string word = plain(words[i]);
    raw = raw || (word.starts_with('-') && word.find('r') != std::string::npos);
    if (!word.starts_with('-')) {
      names.push_back(word);
    } else if (word.ends_with('d') && i + 1 < words.size()) {
      if (!words[++i].empty()) return false;  // up to another letter
      whole = true;
    } else if (word.find_first_not_of("-rs") != std::string::npos) {
      return false;
    }
  }
  if (names.size() != 1 || input.empty()) return false;
  ShellText value = raw ? input : without_escapes(input);
  if (!whole) {
    value.erase(std::find_if(value.begin(), value.end(), [](const auto& l) { return l.c == '\n'; }),
                value.end());
  }
  const auto is_edge = [](const ShellLetter& l) { return is_shell_blank(l.c) || l.c == '\n'; };
  while (!value.empty() && is_edge(value.back())) value.pop_back();
  value.erase(value.begin(), std::find_if_not(value.begin(), value.end(), is_edge));
  set(names.front(), false, with_certainty({.values = {std::move(value)}}));
  return true;
}

void ScriptReader::include(const ShellText& name) {
  const ShellWord word = source(name);
  if (const auto found = find_file_ ? find_file_(word.text) : std::nullopt) {
    ++sourced_deep_;
    read(found->text, found->name);
    --sourced_deep_;
    return;
  }
  const std::string base = base_of(word.text);
  script_.findings.push_back(
      {Severity::note, "sourced_file_missing", word.place,
       fmt::format("{} is read here and is not among the files given", shown(base)),
       fmt::format("give {} too", shown(base)), ""});
}

}  // namespace qplan
