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

// The lines up to the document's end.
ShellText ScriptReader::here_document(const HereDocument& document) {
  ShellText text;
  while (!in_.at_end()) {
    const std::size_t end = in_.line_end();
    std::string_view line = in_.text.substr(in_.at, end - in_.at);
    if (document.strips_tabs) {
      const std::size_t tabs = std::min(line.find_first_not_of('\t'), line.size());
      line.remove_prefix(tabs);
      in_.at += tabs;
    }
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool last = line == document.end;
    const std::size_t stop = in_.at + line.size();
    if (!last && document.expands) {
      const ShellText expanded = words_.document_line(stop);
      text.insert(text.end(), expanded.begin(), expanded.end());
    }
    while (!last && in_.at < stop) text.push_back(in_.take());
    in_.at = std::max(in_.at, end);  // an expansion may have read on
    if (!last) text.push_back(in_.letter(in_.at));
    if (!last) text.back().c = '\n';
    in_.skip_line();
    if (last) break;
  }
  return text;
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
