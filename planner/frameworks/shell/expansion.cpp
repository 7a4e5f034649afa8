// What follows a '$' of a shell script.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/ascii.h"
#include "models/error.h"
#include "planner/frameworks/shell/arithmetic.h"
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

// "NAME", "$NAME" and "${NAME}" of an arithmetic expression replaced by what they are worth.
// A name without a known value stays.
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

}  // namespace

// "$NAME", "${NAME}", "${NAME:-word}", "${NAME[@]}", "$((...))", "$(...)".
void ShellWordReader::expand(Words& words, Mode mode) {
  const std::size_t from = in_.at++;  // the '$'
  if (in_.peek() == '(' && in_.peek(1) == '(') return arithmetic(words.back(), from);
  if (in_.peek() == '(') {
    in_.skip_brackets('(', ')');
    return append_unknown(words.back(), from);
  }
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
  const std::size_t op = default_operator(rest);
  if (op == 0) return append_unknown(words.back(), from);

  const ShellVariable* const variable = find(variables_, name);
  const bool set =
      variable != nullptr && !variable->values.empty() && !variable->values.front().empty();
  if (set) return insert(words, name, from, mode, Items::first);
  // The environment may say otherwise; a default is what a plain run takes.
  in_.at = tail + op;
  while (in_.at < end - 1) piece(words, mode);
  in_.at = end;
}

void ShellWordReader::arithmetic(ShellText& to, std::size_t from) {
  in_.skip_brackets('(', ')');
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
