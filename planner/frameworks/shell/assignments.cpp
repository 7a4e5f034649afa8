// What sets a shell's variables: NAME=value, items of arrays, arithmetic, defaults, and what was
// meant for an assignment. What a branch may skip is marked.

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "models/error.h"
#include "planner/frameworks/shell/arithmetic.h"
#include "planner/frameworks/shell/script_reader.h"

namespace qplan {
namespace {

// Written at the same place, and not only spelled alike.
bool is_the_same(const ShellLetter& a, const ShellLetter& b) {
  return a.c == b.c && a.file == b.file && a.at == b.at;
}

}  // namespace

// NAME=..., NAME+=..., NAME=(...).
bool ScriptReader::assignment(Environment& environment, bool exports) {
  std::size_t ahead = 0;
  while (is_shell_name(in_.peek(ahead))) ++ahead;
  if (ahead == 0 || (in_.peek() >= '0' && in_.peek() <= '9')) return false;
  if (in_.peek(ahead) == '[') return item_assignment(ahead);
  const bool adds = in_.peek(ahead) == '+';
  const std::size_t equals = ahead + (adds ? 1 : 0);
  const std::size_t spaced = value_behind_blanks(ahead);
  if (spaced == 0 && in_.peek(equals) != '=') return false;
  const std::string name(in_.text.substr(in_.at, ahead));
  const bool adds_spaced =
      in_.text.substr(in_.at + ahead, spaced - std::min(spaced, ahead)).find('+') !=
      std::string_view::npos;
  const std::size_t begin = in_.at;
  in_.at += spaced > 0 ? spaced : equals + 1;
  ShellVariable value = assigned(name);
  if (spaced > 0) meant_assignment({begin, begin + spaced}, name, adds_spaced, value);
  if (branches_.reached() == Truth::no) return true;
  if (!exports && before_.count(name) == 0) {
    const auto known = variables_.find(name);
    before_[name] = known == variables_.end() ? std::nullopt : std::optional(known->second);
  }
  ShellVariable& variable = set(name, adds || (spaced > 0 && adds_spaced), std::move(value));
  variable.exported = variable.exported || exports;
  if (!exports) handed_.insert(name);
  if (!variable.is_array && is_resolved(variable.values.front())) {
    environment[name] = plain(variable.values.front());
    if (variable.exported) exported_[name] = environment[name];
  }
  return true;
}

// Marked where only a run can tell whether it is set.
ShellVariable ScriptReader::assigned(const std::string& name) {
  ShellVariable value;
  value.is_array = in_.peek() == '(';
  if (value.is_array) {
    ++in_.at;
    value.values = words_.items();
  } else {
    value.values = {words_.value()};
  }
  keep_defaults();
  const auto before = variables_.find(name);
  return with_certainty(std::move(value), before == variables_.end() ? nullptr : &before->second);
}

// "$NAME=8", which bash takes for a command: what was meant sets NAME.
bool ScriptReader::meant_name() {
  if (in_.peek() != '$' || in_.letters != nullptr) return false;
  std::size_t end = 1;
  while (is_shell_name(in_.peek(end))) ++end;
  const bool digit = in_.peek(1) >= '0' && in_.peek(1) <= '9';
  const bool sets = in_.peek(end) == '=' && in_.peek(end + 1) != '=';
  if (end == 1 || digit || !sets) return false;
  const std::string name(in_.text.substr(in_.at + 1, end - 1));
  if (branches_.reached() != Truth::no) {
    add_fault(
        "dollar_assignment", in_.at,
        fmt::format("${}= is no assignment: the variable stays as it is, and bash looks for a "
                    "command of that name",
                    shown(name)),
        fmt::format("write {}= without the $", shown(name)),
        edit_of(sources_, in_, in_.at, in_.at + 1, ""));
  }
  ++in_.at;
  return true;
}

// "NAME = value", "NAME= (": where the value begins that was meant for an assignment; 0: it is
// one, or a command.
std::size_t ScriptReader::value_behind_blanks(std::size_t name_size) const {
  std::size_t equals = name_size;
  while (is_shell_blank(in_.peek(equals))) ++equals;
  const bool before = equals > name_size;
  if (in_.peek(equals) == '+') ++equals;
  if (in_.peek(equals) != '=' || in_.peek(equals + 1) == '=') return 0;
  std::size_t value = equals + 1;
  while (is_shell_blank(in_.peek(value))) ++value;
  const bool behind = value > equals + 1;
  constexpr std::string_view kEnds("\0\n;#|&)<>", 9);
  if ((!before && !behind) || kEnds.find(in_.peek(value)) != std::string_view::npos) return 0;
  if (in_.peek(value) == '(') return value;
  const std::string name(in_.text.substr(in_.at, name_size));
  if (before) {
    const bool constant = std::none_of(name.begin(), name.end(), [](char c) {
      return std::islower(static_cast<unsigned char>(c)) != 0;
    });
    const bool read = in_.text.find("$" + name) != std::string_view::npos ||
                      in_.text.find("${" + name) != std::string_view::npos;
    return constant || read ? value : 0;
  }
  // "NAME= command" is right; no command is a number.
  std::size_t end = value;
  while (std::string_view("0123456789.e-").find(in_.peek(end)) != std::string_view::npos) ++end;
  const bool number = std::isdigit(static_cast<unsigned char>(in_.peek(value))) != 0;
  return number && (is_shell_blank(in_.peek(end)) || kEnds.find(in_.peek(end)) != kEnds.npos)
             ? value
             : 0;
}

// NAME, blanks and "=" stand in `head`; the words behind the value may belong to it.
void ScriptReader::meant_assignment(Span head, const std::string& name, bool adds,
                                    ShellVariable& value) {
  std::vector<Edit> fix =
      edit_of(sources_, in_, head.begin + name.size(), head.end, adds ? "+=" : "=");
  if (!value.is_array && in_.letter(head.end).c == '-') {
    std::size_t end = in_.at;
    for (;;) {
      words_.skip_blanks();
      if (words_.at_word_end() || in_.peek() == '#') break;
      for (const ShellText& word : words_.word()) {
        ShellText& text = value.values.front();
        text.push_back(text.empty() ? in_.letter(head.end) : text.back());
        text.back().c = ' ';
        text.insert(text.end(), word.begin(), word.end());
      }
      end = in_.at;
    }
    const std::string_view all = in_.text.substr(head.end, end - head.end);
    const auto closing = edit_of(sources_, in_, end, end, "\"");
    if (all.find_first_of("\"'") != std::string_view::npos || closing.empty()) fix.clear();
    if (!fix.empty() && all.find(' ') != std::string_view::npos) {
      fix.front().text += '"';
      fix.push_back(closing.front());
    }
  }
  if (branches_.reached() == Truth::no) return;
  const Place place = sources_.place(in_.letter(head.begin));
  const auto same = [&](const Finding& f) {
    return f.rule == "blanks_at_equals" && f.place.file == place.file && f.place.line == place.line;
  };
  auto& findings = script_.findings;
  if (std::any_of(findings.begin(), findings.end(), same)) return;
  const std::string sign = adds ? "+=" : "=";
  findings.push_back(
      {Severity::error, "blanks_at_equals", place,
       value.is_array
           ? fmt::format("{} {} with blanks around it is no assignment: bash stops at the bracket",
                         shown(name), sign)
           : fmt::format("{} {} with blanks around it is no assignment: the variable stays unset, "
                         "and bash looks for a command of that name",
                         shown(name), sign),
       fmt::format("write {}{} without blanks", shown(name), sign), "bash(1), parameters",
       std::move(fix)});
}

// NAME[2]=value, NAME[key]=value.
bool ScriptReader::item_assignment(std::size_t name_size) {
  const std::size_t close = in_.text.find(']', in_.at + name_size);
  if (close == std::string_view::npos || close + 1 >= in_.text.size() ||
      in_.text[close + 1] != '=' || close > in_.line_end()) {
    return false;
  }
  const std::string name(in_.text.substr(in_.at, name_size));
  const std::string_view index =
      in_.text.substr(in_.at + name_size + 1, close - in_.at - name_size - 1);
  const ShellLetter from = in_.letter(in_.at);
  in_.at = close + 2;
  ShellText value = words_.value();
  if (branches_.reached() == Truth::no) return true;
  ShellVariable& variable = variables_[name];
  variable.is_array = true;
  const auto number = shell_arithmetic(index);
  const bool inside =
      number && *number >= 0 && *number <= static_cast<std::int64_t>(variable.values.size());
  const bool known = branches_.reached() == Truth::yes &&
                     index.find('$') == std::string_view::npos && (inside || !number);
  if (!known) {
    variable.values = {{ShellLetter{'$', from.file, Certainty::unknown, from.at}}};
  } else if (!number) {
    ShellText item;
    for (const char c : fmt::format("[{}]=", index)) {
      item.push_back({c, from.file, Certainty::known, from.at});
    }
    std::erase_if(item, [](const ShellLetter& l) { return l.c == '"' || l.c == '\''; });
    item.insert(item.end(), value.begin(), value.end());
    variable.values.push_back(std::move(item));
  } else if (*number == static_cast<std::int64_t>(variable.values.size())) {
    variable.values.push_back(std::move(value));
  } else {
    variable.values[static_cast<std::size_t>(*number)] = std::move(value);
  }
  return true;
}

// "((NAME = a + b, ++c))".
void ScriptReader::arithmetic_command() {
  const std::size_t begin = in_.at;
  in_.skip_brackets('(', ')');
  if (branches_.reached() == Truth::no || in_.at < begin + 4) return;
  set_by_arithmetic(in_.text.substr(begin + 2, in_.at - begin - 4), begin + 2);
}

// What is not "NAME = sum" changes its names in a way that is not followed.
void ScriptReader::set_by_arithmetic(std::string_view text, std::size_t at) {
  const std::size_t comma = text.find(',');
  if (comma != std::string_view::npos) {
    set_by_arithmetic(text.substr(0, comma), at);
    return set_by_arithmetic(text.substr(comma + 1), at + comma + 1);
  }
  const std::size_t equals = text.find('=');
  const bool changes =
      text.find("++") != std::string_view::npos || text.find("--") != std::string_view::npos;
  if (equals == std::string_view::npos ? !changes : text.substr(equals).starts_with("==")) {
    return;
  }
  const std::size_t from = text.find_first_not_of(" \t\n+-");
  std::size_t end = std::min(from, text.size());
  while (end < text.size() && is_shell_name(text[end])) ++end;
  if (from == std::string_view::npos || end == from) return;
  const std::string name(text.substr(from, end - from));
  const std::size_t behind = text.find_first_not_of(" \t", end);
  const auto value = behind == equals && equals != std::string_view::npos
                         ? shell_arithmetic(with_values(text.substr(equals + 1), variables_))
                         : std::nullopt;
  ShellText result;
  const std::string spelled = value ? fmt::format("{}", *value) : name;
  for (const char c : spelled) {
    ShellLetter l = in_.letter(std::min(at + from, in_.text.size()));
    l.c = c;
    if (!value) l.certainty = Certainty::unknown;
    result.push_back(l);
  }
  set(name, false, with_certainty({.values = {std::move(result)}}));
}

ShellVariable& ScriptReader::set(const std::string& name, bool adds, ShellVariable value) {
  ShellVariable& variable = variables_[name];
  if (adds && value.is_array) {
    variable.is_array = true;
    variable.values.insert(variable.values.end(), value.values.begin(), value.values.end());
  } else if (adds && !variable.values.empty()) {
    ShellText& text = variable.values.front();
    text.insert(text.end(), value.values.front().begin(), value.values.front().end());
  } else {
    value.exported = variable.exported;
    variable = std::move(value);
  }
  return variable;
}

ShellVariable ScriptReader::with_certainty(ShellVariable value, const ShellVariable* before) const {
  if (branches_.reached() == Truth::yes) return value;
  const ShellVariable whole = value;
  for (ShellText& text : value.values) {
    for (ShellLetter& l : text) l.certainty = std::max(l.certainty, Certainty::perhaps);
  }
  // What a branch only adds to ('X="$X --more"') is there without it, too.
  for (std::size_t i = 0; before != nullptr && i < whole.values.size(); ++i) {
    const ShellText& text = whole.values[i];
    for (const ShellText& old : before->values) {
      if (old.empty()) continue;
      const auto found = std::search(text.begin(), text.end(), old.begin(), old.end(), is_the_same);
      if (found == text.end()) continue;
      std::copy(found, found + static_cast<std::ptrdiff_t>(old.size()),
                value.values[i].begin() + (found - text.begin()));
    }
  }
  return value;
}

// "${NAME:=word}" sets a variable.
void ScriptReader::keep_defaults() {
  for (auto& [name, text] : words_.take_set()) {
    if (branches_.reached() == Truth::no) continue;
    set(name, false, with_certainty({.values = {std::move(text)}}));
  }
}

// "NAME=value command" sets it for the command alone.
void ScriptReader::take_back() {
  for (auto& [name, variable] : before_) {
    if (variable) {
      variables_[name] = std::move(*variable);
    } else {
      variables_.erase(name);
    }
  }
  before_.clear();
}

// "export A B", of variables that are set already.
void ScriptReader::export_names(std::span<const ShellText> names) {
  for (const ShellText& name : names) {
    const auto found = variables_.find(plain(name));
    if (found == variables_.end() || found->second.is_array) continue;
    found->second.exported = true;
    const ShellText& value = found->second.values.front();
    if (is_resolved(value)) exported_[found->first] = plain(value);
  }
}

void ScriptReader::set_unknown(const ShellText& name) {
  ShellText value = name;
  for (ShellLetter& l : value) l.certainty = Certainty::unknown;
  variables_[plain(name)] = {.values = {value}};
}

}  // namespace qplan
