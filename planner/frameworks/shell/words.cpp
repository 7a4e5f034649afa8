#include "planner/frameworks/shell/words.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"

namespace qplan {
namespace {

constexpr int kDeepest = 100;

// Said once a file, with all its lines.
void add_broken_continuation(std::vector<Finding>& findings, const Place& place,
                             const std::vector<Edit>& fix) {
  const auto same = std::find_if(findings.begin(), findings.end(), [&](const Finding& f) {
    return f.rule == "broken_continuation" && f.place.file == place.file;
  });
  if (same != findings.end()) {
    if (same->place.line == place.line) return;
    const bool second = same->message.find("so do lines") == std::string::npos;
    // A script that is started twice is read twice, and so is a function's body.
    const bool known =
        !fix.empty() && std::any_of(same->fix.begin(), same->fix.end(), [&](const Edit& edit) {
          return edit.begin == fix.front().begin && edit.end == fix.front().end;
        });
    if (known) return;
    same->message += fmt::format("{} {}", second ? "; so do lines" : ",", place.line);
    same->fix.insert(same->fix.end(), fix.begin(), fix.end());
    return;
  }
  findings.push_back(
      {Severity::error, "broken_continuation", place,
       "the backslash is not the last character of its line, so the command ends here and the "
       "lines below are commands of their own",
       "put remarks on lines of their own, outside the command", "bash(1), quoting", fix});
}

// Whether a backslash that none before it takes ends a line.
bool is_continued(std::string_view line) {
  const std::size_t last = line.find_last_not_of('\\');
  const std::size_t backslashes = line.size() - (last == line.npos ? 0 : last + 1);
  return backslashes % 2 == 1;
}

}  // namespace

void ShellWordReader::skip_blanks() {
  while (!in_.at_end()) {
    if (is_shell_blank(in_.peek())) {
      ++in_.at;
    } else if (in_.peek() == '\\' && in_.peek(1) == '\n') {
      in_.at += 2;
    } else if (!broken_continuation()) {
      return;
    }
  }
}

// A backslash that was meant to continue the line, with blanks or a remark behind it.
bool ShellWordReader::broken_continuation() {
  if (in_.peek() != '\\' || !is_shell_blank(in_.peek(1)) || in_.at_unknown()) return false;
  std::size_t ahead = 1;
  while (is_shell_blank(in_.peek(ahead))) ++ahead;
  const bool at_end = in_.at + ahead >= in_.text.size();
  if (!at_end && in_.peek(ahead) != '#' && in_.peek(ahead) != '\n') return false;
  const std::size_t end = in_.line_end();
  const bool from_windows = end == in_.at + 2 && in_.peek(1) == '\r';
  if (!from_windows) {
    const std::size_t last = in_.text[end - 1] == '\r' ? end - 1 : end;
    auto fix = edit_of(sources_, in_, in_.at + 1, last, "");
    if (!fix.empty() && in_.peek(ahead) == '#' && in_.letters == nullptr) {
      fix.push_back(remark_above(command_, in_.at + ahead, end));
    }
    add_broken_continuation(findings_, sources_.place(in_.letter(in_.at)), fix);
  }
  in_.skip_line();
  return true;
}

Edit ShellWordReader::remark_above(std::size_t command, std::size_t begin, std::size_t end) const {
  const auto line_of = [this](std::size_t at) {
    return at == 0 ? 0 : in_.text.rfind('\n', at - 1) + 1;  // npos + 1: the first
  };
  const std::size_t line = line_of(begin), above = line_of(std::min(command, begin));
  const auto indent_end = [this](std::size_t at) {
    return std::min(in_.text.find_first_not_of(" \t", at), in_.text.size());
  };
  const std::size_t word = indent_end(line);
  const std::size_t word_end = std::min(in_.text.find_first_of(" \t=\\", word), begin);
  std::string_view remark = in_.text.substr(begin, end - begin);
  // A backslash at its end continued nothing.
  while (!remark.empty() &&
         std::string_view("\\ \t\r").find(remark.back()) != std::string_view::npos) {
    remark.remove_suffix(1);
  }
  remark.remove_prefix(std::min(remark.find_first_not_of("# \t"), remark.size()));
  const std::string_view line_break = in_.text.substr(0, end).ends_with('\r') ? "\r\n" : "\n";
  return {sources_.name(in_.file), above, above,
          fmt::format("{}# {}: {}{}", in_.text.substr(above, indent_end(above) - above),
                      in_.text.substr(word, word_end - word), remark, line_break)};
}

// "--a 1\\", "--b 2" at the begin of the next line: without a blank the two lines are one word.
bool ShellWordReader::glued_line() {
  if (in_.peek() != '\\' || in_.peek(1) != '\n' || in_.letters != nullptr || in_.at == 0)
    return false;
  const char before = in_.text[in_.at - 1];
  if (is_shell_blank(before) || before == '\n' || before == '\\') return false;
  const std::string_view line =
      in_.text.substr(in_.at + 2).substr(0, in_.text.substr(in_.at + 2).find('\n'));
  const std::size_t key = line.find_first_not_of("+~");
  std::size_t end = std::min(key, line.size());
  while (end < line.size() && (is_shell_name(line[end]) || line[end] == '.')) ++end;
  const std::size_t dot = line.find('.');
  const bool override_of_hydra = end < line.size() && line[end] == '=' && dot < end && dot > key;
  const bool flag = line.starts_with("--") && line.size() > 2 && is_shell_name(line[2]);
  const bool array = line.starts_with("${") && line.find("[@]}") != std::string_view::npos;
  if (!override_of_hydra && !flag && !array) return false;
  const std::size_t word_end = std::min(line.find_first_of(" \t=\\"), line.size());
  findings_.push_back(
      {Severity::error, "glued_lines", sources_.place(in_.letter(in_.at)),
       fmt::format("no blank stands before the backslash, so that {} of the next line is part of "
                   "this line's last word",
                   shown(line.substr(0, word_end))),
       "put a blank before the backslash", "bash(1), quoting",
       edit_of(sources_, in_, in_.at, in_.at, " ")});
  findings_.back().fix.renames = true;  // what it hides may come up
  return true;
}

bool ShellWordReader::at_word_end() const {
  constexpr std::string_view kEnds = "\n;|&<>()";
  const char c = in_.peek();
  if (in_.at_unknown()) return false;
  return in_.at_end() || is_shell_blank(c) || kEnds.find(c) != std::string_view::npos;
}

std::vector<ShellText> ShellWordReader::word() {
  Words words(1);
  bool quoted = false;
  while (!at_word_end()) {
    if (broken_continuation() || glued_line()) break;
    quoted = quoted || in_.peek() == '"' || in_.peek() == '\'';
    piece(words, Mode::word);
  }
  if (!quoted) std::erase_if(words, [](const ShellText& text) { return text.empty(); });
  return words;
}

ShellText ShellWordReader::value() {
  Words words(1);
  while (!at_word_end()) piece(words, Mode::assignment);
  ShellText text = std::move(words.front());
  for (std::size_t i = 1; i < words.size(); ++i) {  // of "${ITEMS[@]}"
    text.push_back({' '});
    text.insert(text.end(), words[i].begin(), words[i].end());
  }
  return text;
}

std::vector<ShellText> ShellWordReader::items() {
  std::vector<ShellText> items;
  while (!in_.at_end() && in_.peek() != ')') {
    skip_blanks();
    if (in_.peek() == '\n') {
      ++in_.at;
    } else if (in_.peek() == '#') {
      in_.at = in_.line_end();
    } else if (!in_.at_end() && in_.peek() != ')') {
      const std::size_t before = in_.at;
      for (ShellText& text : word()) items.push_back(std::move(text));
      if (in_.at == before) ++in_.at;  // a letter that belongs to no word, as '&'
    }
  }
  if (!in_.at_end()) ++in_.at;
  return items;
}

ShellText ShellWordReader::document_line(std::size_t end) {
  Words words(1);
  while (in_.at < end) {
    const char next = in_.peek(1);
    const bool escapes = in_.peek() == '\\' && (next == '$' || next == '`' || next == '\\');
    if (in_.peek() == '$' && !in_.at_unknown()) {
      expand(words, Mode::quoted);
    } else if (escapes) {
      ++in_.at;
      words.back().push_back(in_.take());
    } else {
      words.back().push_back(in_.take());
    }
  }
  return words.front();
}

ShellText ShellWordReader::document(const HereDocument& document) {
  ShellText text;
  // A line that is joined to the one with the delimiter hides it (bash reads on to the end of the
  // file): its backslash stays, and is found among the words.
  const auto ends_next = [&] {
    std::string_view next = in_.text.substr(std::min(in_.line_end() + 1, in_.text.size()));
    if (document.strips_tabs)
      next.remove_prefix(std::min(next.find_first_not_of('\t'), next.size()));
    next = next.substr(0, next.find('\n'));
    return (next.ends_with('\r') ? next.substr(0, next.size() - 1) : next) == document.end;
  };
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
    const bool joined = !last && document.joins && is_continued(line) && !ends_next();
    const std::size_t stop = in_.at + line.size() - (joined ? 1 : 0);
    if (!last && document.expands) {
      const ShellText expanded = document_line(stop);
      text.insert(text.end(), expanded.begin(), expanded.end());
    }
    while (!last && in_.at < stop) text.push_back(in_.take());
    in_.at = std::max(in_.at, end);  // an expansion may have read on
    if (!last && !joined) text.push_back(in_.letter(in_.at));
    if (!last && !joined) text.back().c = '\n';
    in_.skip_line();
    if (last) break;
  }
  return text;
}

// A backslash: it joins two lines, or takes the next letter as it is. Between double quotes it is
// itself before all but a few.
void ShellWordReader::escape(ShellText& to, Mode mode) {
  constexpr std::string_view kEscaped = "$`\"\\";
  if (in_.peek(1) == '\n') {
    in_.at += 2;
    return;
  }
  const bool keeps = mode == Mode::quoted && kEscaped.find(in_.peek(1)) == std::string_view::npos;
  if (keeps) to.push_back(in_.letter(in_.at));
  ++in_.at;
  if (!in_.at_end()) to.push_back(in_.take());
}

// Said once: a function's body is read again where it is called. A piece of the text that expansion
// cut out may lack a quote that the file has.
void ShellWordReader::unclosed(std::size_t quote) {
  const Place place = sources_.place(in_.letter(quote));
  const bool known = std::any_of(findings_.begin(), findings_.end(), [&](const Finding& f) {
    return f.rule == "unclosed_quote" && f.place.file == place.file;
  });
  if (known || in_.letters != nullptr) return;
  // Where one in the middle is missing, each that follows ends what the one before began.
  const auto over = over_lines_.find({in_.file, in_.text[quote]});
  const int line =
      over == over_lines_.end() ? place.line : sources_.place(in_.letter(over->second)).line;
  findings_.push_back(
      {Severity::error,
       "unclosed_quote",
       place,
       fmt::format("the quote {} that begins here is not closed, and the file ends in it{}",
                   in_.text[quote],
                   line == place.line
                       ? std::string()
                       : fmt::format("; the first that goes on over the end of its line begins in "
                                     "line {}",
                                     line)),
       "close it where its text ends",
       "bash(1), quoting",
       {}});
}

// A quote that was closed, whose text ends before the cursor.
void ShellWordReader::closed(std::size_t quote) {
  const std::string_view text = in_.text.substr(quote, in_.at - quote);
  if (in_.letters == nullptr && text.find('\n') != std::string_view::npos) {
    over_lines_.emplace(std::pair(in_.file, in_.text[quote]), quote);
  }
}

// One quoted stretch, variable or letter of a word; moves on by one letter at least.
void ShellWordReader::piece(Words& words, Mode mode) {
  if (++depth_ > kDeepest) {
    throw Error(fmt::format("{}: quotes and variables are nested deeper than {}", sources_.name(0),
                            kDeepest));
  }
  const char c = in_.peek();
  if (in_.at_unknown()) {
    words.back().push_back(in_.take());
  } else if (c == '\\') {
    escape(words.back(), mode);
  } else if (c == '\'' && mode != Mode::quoted) {
    const std::size_t quote = in_.at++;
    while (!in_.at_end() && in_.peek() != '\'') words.back().push_back(in_.take());
    in_.at_end() ? unclosed(quote) : closed(quote);
    ++in_.at;
  } else if (c == '"') {
    const std::size_t quote = in_.at++;
    while (!in_.at_end() && in_.peek() != '"') piece(words, Mode::quoted);
    in_.at_end() ? unclosed(quote) : closed(quote);
    ++in_.at;
  } else if (c == '$') {
    expand(words, mode);
  } else if (c == '`') {
    const std::size_t from = in_.at++;
    while (!in_.at_end() && in_.peek() != '`') ++in_.at;
    const std::size_t end = in_.at;
    if (!in_.at_end()) ++in_.at;
    if (!substituted(words, {from + 1, end}, mode)) append_unknown(words.back(), from);
  } else {
    words.back().push_back(in_.take());
  }
  in_.at = std::min(in_.at, in_.text.size());
  --depth_;
}

}  // namespace qplan
