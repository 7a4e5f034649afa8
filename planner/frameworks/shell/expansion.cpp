// What follows a '$' of a shell script.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/ascii.h"
#include "models/error.h"
#include "planner/frameworks/shell/arithmetic.h"
#include "planner/frameworks/shell/patterns.h"
#include "planner/frameworks/shell/substitutions.h"
#include "planner/frameworks/shell/words.h"

namespace qplan {
namespace {

constexpr std::size_t kMostLetters = std::size_t{1} << 22U;

// Null: unset, as far as the script says.
const ShellVariable* find(const ShellVariables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() ? nullptr : &found->second;
}

// The ":-" of "${NAME:-word}" and its kin, by length; 0: `rest` begins with none.
std::size_t default_operator(std::string_view rest) {
  for (const std::string_view op : {":-", ":=", "-", "="}) {
    if (rest.starts_with(op)) return op.size();
  }
  return 0;
}

}  // namespace

std::string with_values(std::string_view text, const ShellVariables& variables) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    if (!is_shell_name(text[i]) && text[i] != '$') {
      result += text[i++];
      continue;
    }
    std::size_t end = i + (text[i] == '$' ? 1 : 0);
    const bool braced = end < text.size() && text[end] == '{';
    if (braced) ++end;
    const std::size_t begin = end;
    while (end < text.size() && is_shell_name(text[end])) ++end;
    const std::string name(text.substr(begin, end - begin));
    if (braced && end < text.size()) ++end;
    i = std::max(end, i + 1);
    const ShellVariable* const variable = find(variables, name);
    const bool known =
        variable != nullptr && !variable->values.empty() && is_resolved(variable->values.front());
    result += known ? plain(variable->values.front()) : name;
  }
  return result;
}

// "$NAME", "${NAME}", "${NAME:-word}", "${NAME[@]}", "$((...))", "$(...)".
void ShellWordReader::expand(Words& words, Mode mode) {
  const std::size_t from = in_.at++;  // the '$'
  if (in_.peek() == '(' && in_.peek(1) == '(') return arithmetic(words.back(), from);
  if (in_.peek() == '(') {
    if (document(words, mode)) return;
    const std::size_t begin = in_.at + 1;
    if (!in_.skip_brackets('(', ')')) unclosed_brackets(from);
    if (substituted(words, {begin, in_.at - 1}, mode)) return;
    return append_unknown(words.back(), from);
  }
  if (in_.peek() == '\'' && mode != Mode::quoted) return escaped(words.back());
  if (in_.peek() == '{') return braces(words, from, mode);
  const std::size_t begin = in_.at;
  constexpr std::string_view kSpecial = "0123456789@*#?$!-";
  if (is_shell_name(in_.peek()) && !is_digit(in_.peek())) {
    while (is_shell_name(in_.peek())) ++in_.at;
  } else if (!in_.at_end() && kSpecial.find(in_.peek()) != std::string_view::npos) {
    ++in_.at;
  }
  const std::string name(in_.text.substr(begin, in_.at - begin));
  if (name.empty()) {
    words.back().push_back(in_.letter(from));
    return;
  }
  const Items items = name == "@" ? Items::all : name == "*" ? Items::joined : Items::first;
  insert(words, name, from, mode, items);
}

// "$(cat <<'END' ... END)" at its bracket: the text of the here-document. False: it is none.
bool ShellWordReader::document(Words& words, Mode mode) {
  constexpr std::string_view kCat = "cat";
  const std::size_t from = in_.at;
  const std::string_view line = in_.text.substr(from + 1, in_.line_end() - from - 1);
  const std::size_t cat = line.find_first_not_of(" \t");
  const std::size_t sign = line.find("<<");
  if (cat == std::string_view::npos || sign == std::string_view::npos ||
      line.substr(cat, kCat.size()) != kCat ||
      line.substr(cat + kCat.size(), sign - cat - kCat.size()).find_first_not_of(" \t") !=
          std::string_view::npos) {
    return false;
  }
  std::string_view end = line.substr(sign + 2);
  HereDocument read;
  read.strips_tabs = end.starts_with('-');
  if (read.strips_tabs) end.remove_prefix(1);
  for (const char c : end) {
    const bool quote = c == '\'' || c == '"' || c == '\\';
    read.expands = read.expands && !quote;
    if (quote || is_shell_blank(c)) continue;
    if (!is_shell_name(c)) return false;  // "| tr ...", another redirection
    read.end += c;
  }
  if (read.end.empty()) return false;
  read.joins = read.expands;
  in_.skip_line();
  ShellText text = document(read);
  while (is_shell_blank(in_.peek()) || in_.peek() == '\n') ++in_.at;
  if (in_.peek() != ')') {
    in_.at = from;
    return false;
  }
  ++in_.at;
  while (!text.empty() && text.back().c == '\n') text.pop_back();
  add_value(words, text, mode);
  return true;
}

// What the command prints that stands in `inside`, where its words alone say it.
bool ShellWordReader::substituted(Words& words, Span inside, Mode mode) {
  const ShellCursor outer = in_;
  in_.at = std::min(inside.begin, outer.text.size());
  std::string_view spelled = outer.text.substr(in_.at, inside.end - std::min(in_.at, inside.end));
  spelled.remove_prefix(std::min(spelled.find_first_not_of(" \t\n"), spelled.size()));
  bool known = spelled.starts_with("seq ") || spelled.starts_with("expr ");
  in_.text = outer.text.substr(0, inside.end);
  std::vector<std::string> command;
  for (skip_blanks(); known && !in_.at_end(); skip_blanks()) {
    known = !at_word_end();  // another command, a redirection
    for (const ShellText& text : known ? word() : Words()) {
      known = known && is_resolved(text);
      command.push_back(plain(text));
    }
  }
  in_ = outer;
  const auto printed = known ? output_of(command) : std::nullopt;
  if (!printed) return false;
  ShellText text;
  for (const char c : *printed) {
    text.push_back(in_.letter(inside.begin));
    text.back().c = c;
  }
  add_value(words, text, mode);
  return true;
}

// $'a\'b', at its quote.
void ShellWordReader::escaped(ShellText& to) {
  const std::size_t quote = in_.at++;
  while (!in_.at_end() && in_.peek() != '\'') {
    if (in_.peek() == '\\' && in_.peek(1) != '\0') {
      ++in_.at;
      to.push_back(in_.take());
      if (to.back().c == 'n') to.back().c = '\n';
      if (to.back().c == 't') to.back().c = '\t';
    } else {
      to.push_back(in_.take());
    }
  }
  if (in_.at_end()) unclosed(quote);
  ++in_.at;
}

void ShellWordReader::braces(Words& words, std::size_t from, Mode mode) {
  ++in_.at;
  const bool counts = in_.peek() == '#';
  if (counts) ++in_.at;
  const std::size_t begin = in_.at;
  while (is_shell_name(in_.peek())) ++in_.at;
  const std::string name(in_.text.substr(begin, in_.at - begin));
  const std::size_t tail = in_.at;
  in_.at = from + 1;
  in_.skip_brackets('{', '}');
  const std::size_t end = in_.at;
  if (counts) return append_unknown(words.back(), from);

  const std::string_view rest =
      end > tail + 1 ? in_.text.substr(tail, end - 1 - tail) : std::string_view();
  if (rest.empty()) return insert(words, name, from, mode, Items::first);
  if (rest == "[@]") return insert(words, name, from, mode, Items::all);
  if (rest == "[*]") return insert(words, name, from, mode, Items::joined);
  const Span at{tail, end - 1};
  const ShellVariable* const variable = find(variables_, name);
  if (rest.starts_with('[') && rest.ends_with(']') && variable != nullptr &&
      item(words, *variable, rest.substr(1, rest.size() - 2), mode)) {
    in_.at = end;
    return;
  }
  const bool set =
      variable != nullptr && !variable->values.empty() && !variable->values.front().empty();
  const bool followed =
      rest.starts_with(":+") || rest.starts_with('+') ? alternative(words, variable, rest, at, mode)
      : default_operator(rest) > 0                    ? set_default(words, name, rest, at, mode)
      : rest.starts_with(":?") || rest.starts_with("?")
          ? set && (insert(words, name, from, mode, Items::first), true)
          : set && !variable->is_array && shortened(words, variable->values.front(), at, mode);
  in_.at = end;
  if (!followed) append_unknown(words.back(), from);
}

// "${NAME:-word}", "${NAME:=word}".
bool ShellWordReader::set_default(Words& words, const std::string& name, std::string_view rest,
                                  Span at, Mode mode) {
  const std::size_t op = default_operator(rest);
  const ShellVariable* const variable = find(variables_, name);
  const bool set =
      variable != nullptr && !variable->values.empty() && !variable->values.front().empty();
  if (set) {
    insert(words, name, at.begin, mode, Items::first);
    return true;
  }
  // The environment may say otherwise; a default is what a plain run takes.
  const bool assigns = rest[op - 1] == '=';
  Words value(1);
  in_.at = at.begin + op;
  const Mode whole = mode == Mode::word ? Mode::assignment : mode;  // set as it is
  while (in_.at < at.end) piece(assigns ? value : words, assigns ? whole : mode);
  if (!assigns) return true;
  set_.emplace_back(name, value.front());
  add_value(words, value.front(), mode);
  return true;
}

// "${NAME:+word}": where the script does not set the name, only a run can tell whether the word is
// there.
bool ShellWordReader::alternative(Words& words, const ShellVariable* variable,
                                  std::string_view rest, Span at, Mode mode) {
  const bool known =
      variable != nullptr && !variable->values.empty() && is_resolved(variable->values.front());
  if (known && variable->values.front().empty()) return true;
  const std::size_t first = words.size() - 1, from = words.back().size();
  in_.at = at.begin + (rest[0] == ':' ? 2 : 1);
  while (in_.at < at.end) {
    // Blanks of the word itself divide it, too.
    if (mode == Mode::word && is_shell_blank(in_.peek())) {
      ++in_.at;
      if (!words.back().empty()) words.emplace_back();
    } else {
      piece(words, mode);
    }
  }
  if (words.size() > 1 && words.back().empty()) words.pop_back();
  for (std::size_t i = first; i < words.size() && !known; ++i) {
    for (std::size_t j = i == first ? from : 0; j < words[i].size(); ++j) {
      words[i][j].certainty = std::max(words[i][j].certainty, Certainty::perhaps);
    }
  }
  return true;
}

// "${NAME[2]}", "${NAME[-1]}", "${NAME[key]}" of an array whose items all are known.
bool ShellWordReader::item(Words& words, const ShellVariable& variable, std::string_view index,
                           Mode mode) {
  if (!variable.is_array || index.empty()) return false;
  if (!std::all_of(variable.values.begin(), variable.values.end(), is_resolved)) return false;
  std::string key(index);
  if (key.find_first_of("$'\"") != std::string::npos) {
    std::erase_if(key, [](char c) { return c == '\'' || c == '"'; });
    key = with_values(key, variables_);
    if (key.find('$') != std::string::npos) return false;
  }
  const std::string spelled = "[" + key + "]=";
  const bool keyed = std::any_of(variable.values.begin(), variable.values.end(),
                                 [](const ShellText& v) { return plain(v).starts_with('['); });
  for (auto value = variable.values.rbegin(); keyed && value != variable.values.rend(); ++value) {
    if (!plain(*value).starts_with(spelled)) continue;
    add_value(words, {value->begin() + static_cast<std::ptrdiff_t>(spelled.size()), value->end()},
              mode);
    return true;
  }
  const auto number = keyed ? std::nullopt : shell_arithmetic(with_values(key, variables_));
  if (!number) return false;
  const auto count = static_cast<std::int64_t>(variable.values.size());
  const std::int64_t at = *number < 0 ? *number + count : *number;
  if (at < 0 || at >= count) return false;
  add_value(words, variable.values[static_cast<std::size_t>(at)], mode);
  return true;
}

// "${NAME#pattern}", "${NAME##pattern}", "${NAME%pattern}", "${NAME%%pattern}".
bool ShellWordReader::shortened(Words& words, const ShellText& value, Span at, Mode mode) {
  in_.at = at.begin;
  const char op = in_.peek();
  if (op != '#' && op != '%') return false;
  const bool longest = in_.peek(1) == op;
  in_.at += longest ? 2 : 1;
  Words pattern(1);
  while (in_.at < at.end) piece(pattern, Mode::quoted);
  if (!is_resolved(pattern.front()) || !is_resolved(value)) return false;
  const std::string spelled = plain(value), wanted = plain(pattern.front());
  for (std::size_t i = 0; i <= spelled.size(); ++i) {
    const std::size_t cut = longest ? spelled.size() - i : i;  // letters that go
    const std::string_view gone = op == '#'
                                      ? std::string_view(spelled).substr(0, cut)
                                      : std::string_view(spelled).substr(spelled.size() - cut);
    const auto fits = matches(gone, wanted);
    if (!fits) return false;
    if (!*fits) continue;
    const auto offset = static_cast<std::ptrdiff_t>(cut);
    add_value(words,
              op == '#' ? ShellText(value.begin() + offset, value.end())
                        : ShellText(value.begin(), value.end() - offset),
              mode);
    return true;
  }
  add_value(words, value, mode);
  return true;
}

// "$(" or "$((" at `from`, which nothing ends: what stands in its line is taken for it.
void ShellWordReader::unclosed_brackets(std::size_t from) {
  if (in_.letters != nullptr) return;
  const Place place = sources_.place(in_.letter(from));
  in_.at = std::min(in_.text.find('\n', from), in_.text.size());
  const bool known = std::any_of(findings_.begin(), findings_.end(), [&](const Finding& f) {
    return f.rule == "unclosed_brackets" && f.place.file == place.file;
  });
  if (known) return;
  const bool sum = in_.text.substr(from).starts_with("$((");
  findings_.push_back({Severity::error,
                       "unclosed_brackets",
                       place,
                       fmt::format("{} that begins here is not closed, and the file ends in it",
                                   sum ? "$((" : "$("),
                       sum ? "close it by ))" : "close it by )",
                       "bash(1), expansion",
                       {}});
}

void ShellWordReader::arithmetic(ShellText& to, std::size_t from) {
  if (!in_.skip_brackets('(', ')')) unclosed_brackets(from);
  const std::string_view spelled = in_.text.substr(from, in_.at - from);
  const std::string_view inside =
      spelled.size() > 5 ? spelled.substr(3, spelled.size() - 5) : std::string_view();
  const auto value = shell_arithmetic(with_values(inside, variables_));
  if (!value) return append_unknown(to, from);
  ShellLetter digit = in_.letter(from);
  for (const char c : fmt::format("{}", *value)) {
    digit.c = c;
    to.push_back(digit);
  }
}

// The value of a variable, or those of an array, for what is spelled from `from` on.
void ShellWordReader::insert(Words& words, const std::string& name, std::size_t from, Mode mode,
                             Items items) {
  const ShellVariable* const variable = find(variables_, name);
  if (variable == nullptr) return append_unknown(words.back(), from);
  if (variable->values.empty()) return;
  const bool meant = items == Items::first && takes_arguments_ && mode != Mode::assignment &&
                     variable->is_array && variable->values.size() > 1 && in_.letters == nullptr &&
                     plain(variable->values.front()).starts_with("--");
  if (meant) {
    first_item(name, from);
    items = Items::all;
  }
  const std::size_t count = items == Items::first ? 1 : variable->values.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0 && items == Items::joined && mode == Mode::quoted) {
      words.back().push_back(in_.letter(from));
      words.back().back().c = ' ';
    } else if (i > 0) {
      words.emplace_back();
    }
    add_value(words, variable->values[i], mode);
  }
}

// "$ARGS" of an array of arguments, spelled from `from` on.
void ShellWordReader::first_item(const std::string& name, std::size_t from) {
  std::size_t end = from + 1;
  const bool braces = in_.text.substr(end).starts_with('{');
  end += (braces ? 1 : 0) + name.size() + (braces ? 1 : 0);
  const Place place = sources_.place(in_.letter(from));
  const bool known = std::any_of(findings_.begin(), findings_.end(), [&](const Finding& f) {
    return f.rule == "first_item" && f.place.file == place.file && f.place.line == place.line;
  });
  if (known) return;
  const ShellText& first = variables_.at(name).values.front();
  findings_.push_back({Severity::error, "first_item", place,
                       fmt::format("{} is an array, and without [@] it is its first item alone: {}",
                                   shown(name), shown(plain(first))),
                       fmt::format("write ${{{}[@]}}", shown(name)), "bash(1), arrays",
                       edit_of(sources_, in_, from, end, fmt::format("${{{}[@]}}", name))});
  findings_.back().fix.renames = true;  // what it hides may come up
}

// Outside quotes a value falls apart at its blanks.
void ShellWordReader::add_value(Words& words, const ShellText& value, Mode mode) {
  letters_ += value.size();
  if (letters_ > kMostLetters) {
    throw Error(
        fmt::format("{}: its variables grow beyond {} characters", sources_.name(0), kMostLetters));
  }
  bool gap = false;
  for (const ShellLetter& l : value) {
    if (mode == Mode::word && l.certainty != Certainty::unknown &&
        (is_shell_blank(l.c) || l.c == '\n')) {
      gap = true;
      continue;
    }
    if (gap && !words.back().empty()) words.emplace_back();
    gap = false;
    words.back().push_back(l);
  }
  if (gap && !words.back().empty()) words.emplace_back();
}

// As it is spelled from `from` to the cursor.
void ShellWordReader::append_unknown(ShellText& to, std::size_t from) const {
  for (std::size_t i = from; i < in_.at; ++i) {
    to.push_back(in_.letter(i));
    to.back().certainty = Certainty::unknown;
  }
}

}  // namespace qplan
