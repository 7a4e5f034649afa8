// What a command of a shell script calls or starts: functions, other shells and scripts, read in
// its place with the arguments and variables that they get.

#include <fmt/format.h>

#include "planner/frameworks/shell/script_reader.h"
#include "planner/frameworks/shell/starts.h"

namespace qplan {
namespace {

// "$1", "$@".
bool is_argument(const std::string& name) {
  return name == "@" || name == "*" || (name[0] >= '0' && name[0] <= '9');
}

}  // namespace

// With the variables that are handed on, which alone it may change.
template <class Read>
void ScriptReader::in_new_shell(std::span<const ShellText> arguments, const Read& read_it) {
  const ShellVariables outer = variables_;
  const Environment outer_exports = exported_;
  exported_ = script_.commands.back().environment;
  for (const std::string& name : handed_) variables_[name].exported = true;
  std::erase_if(variables_, [](const auto& v) { return !v.second.exported; });
  set_arguments(arguments);
  read_it();
  variables_ = outer;
  exported_ = outer_exports;
}

// "bash other.sh a b", "srun bash -c '...'": read with its arguments, and with what is exported.
void ScriptReader::start_shell(std::span<const ShellText> words, const ShellText& input) {
  std::vector<std::string> spelled;
  for (const ShellText& word : words) spelled.push_back(plain(word));
  const auto start = shell_start(spelled);
  if (!start) return;
  const std::size_t behind = std::min(start->arguments, words.size());
  if (start->kind == ShellStart::Kind::file) {
    return start_file(words[start->at], words.subspan(behind));
  }
  ShellText text = start->kind == ShellStart::Kind::input ? input : words[start->at];
  text.erase(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(start->skip));
  in_new_shell(words.subspan(behind), [&] { read_again(text); });
}

void ScriptReader::start_file(const ShellText& name, std::span<const ShellText> arguments) {
  const auto written = written_.find(base_of(plain(name)));
  if (written != written_.end()) {
    const ShellText text = written->second;
    return in_new_shell(arguments, [&] { read_again(text); });
  }
  const auto found = find_file_ ? find_file_(plain(name)) : std::nullopt;
  if (!found) return script_.missing.push_back(source(name));
  script_.started.insert(found->name);
  in_new_shell(arguments, [&] {
    ++sourced_deep_;
    read(found->text, found->name);
    --sourced_deep_;
  });
}

// A function's body, in place of the command that names it.
bool ScriptReader::call(const std::string& name, std::span<const ShellText> words) {
  const auto found = functions_.find(name);
  if (found == functions_.end()) return false;
  found->second.called = true;
  std::map<std::string, ShellVariable> outer;
  for (const auto& [key, variable] : variables_) {
    if (is_argument(key)) outer[key] = variable;
  }
  forget_arguments();
  set_arguments(words.subspan(1));
  const ShellText body = found->second.body;
  read_again(body);
  forget_arguments();
  variables_.insert(outer.begin(), outer.end());
  return true;
}

// What is started in a way that is not followed.
void ScriptReader::read_uncalled() {
  for (auto& [name, function] : functions_) {
    if (std::exchange(function.called, true)) continue;
    forget_arguments();
    const ShellText body = function.body;
    read_again(body);
    return read_uncalled();
  }
}

void ScriptReader::set_arguments(std::span<const ShellText> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    variables_[fmt::format("{}", i + 1)] = {.values = {arguments[i]}};
  }
  variables_["@"] =
      variables_["*"] = {.is_array = true, .values = {arguments.begin(), arguments.end()}};
}

// After a "shift", whose count is not followed.
void ScriptReader::forget_arguments() {
  std::erase_if(variables_, [](const auto& v) { return is_argument(v.first); });
}

}  // namespace qplan
