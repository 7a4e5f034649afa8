// Redirections and here-documents of a shell script, and so the files that it writes.

#include <algorithm>
#include <filesystem>

#include "planner/frameworks/shell/script_reader.h"

namespace qplan {

// The 2 of "2>&1" is no word of the command.
void ScriptReader::drop_descriptor(std::vector<ShellText>& words) const {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (words.empty() || in_.at == 0 || !is_digit(in_.text[in_.at - 1])) return;
  const std::string last = plain(words.back());
  if (std::all_of(last.begin(), last.end(), is_digit)) words.pop_back();
}

// "> name", "< name", "<<END", "<<-END", "<<'END'".
void ScriptReader::redirection(Redirections& redirections) {
  const bool in = in_.peek() == '<';
  const std::size_t from = in_.at;
  while (in_.peek() == '<' || in_.peek() == '>' || in_.peek() == '&') ++in_.at;
  if (in_.peek() == '(') return void(in_.skip_brackets('(', ')'));  // commands in place of a file
  const bool here = in_.text.substr(from, in_.at - from) == "<<";
  HereDocument document;
  document.strips_tabs = here && in_.peek() == '-';
  if (document.strips_tabs) ++in_.at;
  words_.skip_blanks();
  document.expands = in_.peek() != '\'' && in_.peek() != '"' && in_.peek() != '\\';
  const std::vector<ShellText> words = words_.word();
  const std::string name = words.empty() ? "" : plain(words.front());
  if (here) {
    document.end = name;
    redirections.documents.push_back(document);
  } else if (!in) {
    redirections.target = name;
  }
}

std::string ScriptReader::base_of(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

void ScriptReader::keep_file(const std::string& name, const ShellText& text) {
  if (name.empty() || branches_.reached() == Truth::no) return;
  const ShellWord all = source(text);
  script_.files.push_back({name, all.text, all.place, all.span, all.resolved});
  written_[base_of(name)] = text;
}

}  // namespace qplan
