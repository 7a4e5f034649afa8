// Statements of a shell script: assignments, redirections, here-documents, commands, and other
// scripts that it reads or starts. What is set where only a run can tell is marked.

#include "planner/frameworks/shell/shell.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <span>

#include "models/error.h"
#include "planner/frameworks/shell/arithmetic.h"
#include "planner/frameworks/shell/branches.h"
#include "planner/frameworks/shell/starts.h"
#include "planner/frameworks/shell/text.h"
#include "planner/frameworks/shell/words.h"

namespace qplan {
namespace {

constexpr std::size_t kMostCommands = 10'000;
constexpr int kDeepestSource = 8;
constexpr int kMostReads = 1000;  // of files that it reads or starts

template <std::size_t N>
using WordList = std::array<std::string_view, N>;

constexpr WordList<5> kDeclarations{"export", "declare", "local", "readonly", "typeset"};
constexpr WordList<3> kReaders{"read", "printf", "mapfile"};  // that set variables as they run

std::string base_of(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

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

struct HereDocument {
  std::string end;
  bool strips_tabs = false, expands = true;
};

struct Redirections {
  std::string target;  // "> name"
  std::vector<HereDocument> documents;
};

class ScriptReader {
 public:
  ScriptReader(ShellScript& script, const FindFile& find_file)
      : script_(script), find_file_(find_file) {}

  void read(std::string_view text, const std::string& name) {
    if (may_read()) read(ShellCursor{text, sources_.add(name, text), 0});
  }

  void finish() {
    read_uncalled();
    for (const auto& [name, variable] : variables_) {
      if (!variable.is_array) continue;
      for (const ShellText& value : variable.values) {
        script_.arrays[name].push_back(sources_.word(value));
      }
    }
  }

 private:
  using Environment = std::map<std::string, std::string>;

  bool may_read() { return sourced_deep_ <= kDeepestSource && ++reads_ <= kMostReads; }

  void read(const ShellCursor& cursor) {
    const ShellCursor outer = in_;
    auto before = std::exchange(before_, {});
    auto bodies = std::exchange(bodies_, {});
    auto outside = std::exchange(outside_, {});
    const int brackets = std::exchange(open_brackets_, 0);
    in_ = cursor;
    command_end_.reset();
    while (!in_.at_end() && script_.commands.size() < kMostCommands) statement();
    command_end_.reset();
    in_ = outer;
    before_ = std::move(before);
    bodies_ = std::move(bodies);
    outside_ = std::move(outside);
    open_brackets_ = brackets;
  }

  // What expansion made of a word, as commands. Branches that it leaves open end with it.
  void read_again(const ShellText& text) {
    if (text.empty() || !may_read()) return;
    const std::string spelled = plain(text);
    const ShellBranches outer = branches_;
    ++sourced_deep_;
    read(ShellCursor{spelled, text.front().file, 0, &text});
    --sourced_deep_;
    branches_ = outer;
  }

  // Up to the end of a line, or to ';', '|', '&'.
  void statement() {
    const std::size_t begin = in_.at;
    words_.begin_command();
    remark_at_.reset();
    ShellCommand command;
    command.environment = exported_;
    handed_.clear();
    before_.clear();
    asks_case_ = false;
    Redirections redirections;
    std::vector<ShellText> words;
    bool declares = false, assigns = false, computes = false;
    const auto between = [&] {
      return in_.peek() == ';' || in_.peek() == '|' || in_.peek() == '&';
    };
    for (;;) {
      words_.skip_blanks();
      if (in_.at_end() || in_.peek() == '\n') break;
      if (in_.peek() == '#') {
        remark();
      } else if (is_in_test(words) && in_.at_operator()) {
        words.push_back(in_.take_operator());
      } else if (in_pattern()) {
        ++in_.at;
      } else if (between()) {
        break;
      } else if (in_.peek() == '<' || in_.peek() == '>') {
        drop_descriptor(words);
        redirection(redirections);
      } else if (words.empty() && in_.peek() == '(' && in_.peek(1) == '(') {
        arithmetic_command();
        computes = true;
      } else if (in_.peek() == '(' || in_.peek() == ')') {
        bracket(words);
      } else if ((words.empty() || declares) &&
                 assignment(declares ? exported_ : command.environment, declares)) {
        assigns = true;
      } else {
        const bool first = words.empty();
        const std::size_t word_begin = in_.at;
        for (ShellText& text : words_.word()) words.push_back(std::move(text));
        keep_defaults();
        if (first && words.size() == 1) keyword(words, word_begin);
        if (asks_case_ && words.size() == 2) case_word(words);
        if (words.size() == 2 && plain(words[0]) == "function") {
          opens_function_ = plain(words[1]);
          words.clear();
        }
        declares = !words.empty() && is_in(kDeclarations, plain(words.front()));
      }
    }
    const std::size_t end = in_.at;
    while (between()) ++in_.at;
    const std::string_view joint = in_.text.substr(end, in_.at - end);
    if (in_.peek() == '\n') ++in_.at;
    ShellText input;
    for (const HereDocument& document : redirections.documents) {
      input = here_document(document);
      keep_file(redirections.target, input);
    }
    if (words.empty() && computes) branches_.command_ends(Truth::open, joint);
    if (words.empty() && !assigns) return branches_.arm_ends(joint);
    auto result = words.empty() ? Truth::yes : test_result(words);  // an assignment succeeds
    if (!branches_.runs_in_order()) result = std::nullopt;
    if (branches_.reached() != Truth::no) run(std::move(command), words, {begin, end}, input);
    if (!words.empty()) take_back();
    branches_.command_ends(result, joint);
    branches_.arm_ends(joint);
  }

  // What the word read last means where a command may begin; it is taken from `words` then.
  void keyword(std::vector<ShellText>& words, std::size_t begin) {
    const std::string word = plain(words[0]);
    const bool opens = word == "{" && !opens_function_.empty();
    if (opens) {
      bodies_.push_back({opens_function_, in_.at});
      branches_.function_begins();
    } else if (word == "}" && branches_.at_function() && !bodies_.empty()) {
      ShellText body;
      for (std::size_t i = bodies_.back().begin; i < begin; ++i) body.push_back(in_.letter(i));
      functions_[bodies_.back().name] = {std::move(body), false};
      bodies_.pop_back();
    }
    opens_function_.clear();
    if (!opens && !branches_.keyword(word)) return;
    sets_next_ = word == "for";
    asks_case_ = word == "case";
    words.clear();
  }

  // "WORD in", behind "case".
  void case_word(std::vector<ShellText>& words) {
    asks_case_ = false;
    if (plain(words[1]) != "in") return;
    branches_.case_of(words[0]);
    words.clear();
  }

  // "${NAME:=word}" sets a variable.
  void keep_defaults() {
    for (auto& [name, text] : words_.take_set()) {
      if (branches_.reached() == Truth::no) continue;
      set(name, false, with_certainty({.values = {std::move(text)}}));
    }
  }

  // "NAME=value command" sets it for the command alone.
  void take_back() {
    for (auto& [name, variable] : before_) {
      if (variable) {
        variables_[name] = std::move(*variable);
      } else {
        variables_.erase(name);
      }
    }
    before_.clear();
  }

  // At the "|" of a pattern such as "-h|--help)".
  [[nodiscard]] bool in_pattern() const {
    if (in_.peek() != '|' || open_brackets_ > 0 || !branches_.in_cases()) return false;
    const std::size_t end = in_.text.find_first_of("\n;&()", in_.at);
    return end != std::string_view::npos && in_.text[end] == ')';
  }

  // Of a subshell; "name() {" is a function's head, and "--flag)" a pattern of a case.
  void bracket(std::vector<ShellText>& words) {
    const bool opens = in_.peek() == '(';
    const bool function = words.size() == 1 && opens && in_.peek(1) == ')';
    const bool pattern = !opens && open_brackets_ == 0 && branches_.in_cases();
    if (function) opens_function_ = plain(words[0]);
    if (pattern) branches_.arm_begins(words);
    if (function || pattern) words.clear();
    if (opens && !function && words.empty()) outside_.push_back({variables_, open_brackets_});
    const bool closes = !opens && !outside_.empty() && outside_.back().depth == open_brackets_ - 1;
    if (closes) {
      variables_ = std::move(outside_.back().variables);
      outside_.pop_back();
    }
    open_brackets_ = std::max(0, open_brackets_ + (opens ? 1 : -1));
    ++in_.at;
  }

  // "#SBATCH --nodes=4" is a remark that the batch system reads.
  void remark() {
    constexpr std::string_view kBatch = "#SBATCH";
    const std::size_t end = in_.line_end();
    remark_at_ = in_.at;
    if (!in_.text.substr(in_.at).starts_with(kBatch)) {
      in_.at = end;
      return;
    }
    in_.at += kBatch.size();
    while (in_.at < end) {
      while (is_shell_blank(in_.peek())) ++in_.at;
      ShellText word;
      while (in_.at < end && !is_shell_blank(in_.peek())) word.push_back(in_.take());
      if (!word.empty()) script_.directives.push_back(sources_.word(word));
    }
  }

  // ---- assignments ----

  // NAME=..., NAME+=..., NAME=(...).
  bool assignment(Environment& environment, bool exports) {
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
    ShellVariable value = assigned();
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
  ShellVariable assigned() {
    ShellVariable value;
    value.is_array = in_.peek() == '(';
    if (value.is_array) {
      ++in_.at;
      value.values = words_.items();
    } else {
      value.values = {words_.value()};
    }
    keep_defaults();
    return with_certainty(std::move(value));
  }

  // "NAME = value", "NAME= (": where the value begins that was meant for an assignment; 0: it is
  // one, or a command.
  [[nodiscard]] std::size_t value_behind_blanks(std::size_t name_size) const {
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
  void meant_assignment(Span head, const std::string& name, bool adds, ShellVariable& value) {
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
      return f.rule == "blanks_at_equals" && f.place.file == place.file &&
             f.place.line == place.line;
    };
    auto& findings = script_.findings;
    if (std::any_of(findings.begin(), findings.end(), same)) return;
    const std::string sign = adds ? "+=" : "=";
    findings.push_back(
        {Severity::error, "blanks_at_equals", place,
         value.is_array
             ? fmt::format(
                   "{} {} with blanks around it is no assignment: bash stops at the bracket",
                   shown(name), sign)
             : fmt::format(
                   "{} {} with blanks around it is no assignment: the variable stays unset, "
                   "and bash looks for a command of that name",
                   shown(name), sign),
         fmt::format("write {}{} without blanks", shown(name), sign), "bash(1), parameters",
         std::move(fix)});
  }

  [[nodiscard]] ShellVariable with_certainty(ShellVariable value) const {
    if (branches_.reached() == Truth::yes) return value;
    for (ShellText& text : value.values) {
      for (ShellLetter& l : text) l.certainty = std::max(l.certainty, Certainty::perhaps);
    }
    return value;
  }

  // NAME[2]=value, NAME[key]=value.
  bool item_assignment(std::size_t name_size) {
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
  void arithmetic_command() {
    const std::size_t begin = in_.at;
    in_.skip_brackets('(', ')');
    if (branches_.reached() == Truth::no || in_.at < begin + 4) return;
    set_by_arithmetic(in_.text.substr(begin + 2, in_.at - begin - 4), begin + 2);
  }

  // What is not "NAME = sum" changes its names in a way that is not followed.
  void set_by_arithmetic(std::string_view text, std::size_t at) {
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

  ShellVariable& set(const std::string& name, bool adds, ShellVariable value) {
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

  // ---- files ----

  // The 2 of "2>&1" is no word of the command.
  void drop_descriptor(std::vector<ShellText>& words) const {
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    if (words.empty() || in_.at == 0 || !is_digit(in_.text[in_.at - 1])) return;
    const std::string last = plain(words.back());
    if (std::all_of(last.begin(), last.end(), is_digit)) words.pop_back();
  }

  // "> name", "< name", "<<END", "<<-END", "<<'END'".
  void redirection(Redirections& redirections) {
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
  ShellText here_document(const HereDocument& document) {
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

  void keep_file(const std::string& name, const ShellText& text) {
    if (name.empty() || branches_.reached() == Truth::no) return;
    const ShellWord all = source(text);
    script_.files.push_back({name, all.text, all.place, all.span, all.resolved});
    written_[base_of(name)] = text;
  }

  void include(const ShellText& name) {
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

  // ---- commands ----

  // `words` that stand in `span` of the text, with a here-document's `input`.
  void run(ShellCommand command, std::span<const ShellText> words, Span span,
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
    if (is_in(kReaders, first)) {
      for (const ShellText& word : words.subspan(1)) set_unknown(word);
      return;
    }
    for (const ShellText& word : words) command.words.push_back(source(word));
    script_.commands.push_back(std::move(command));
    start_shell(words, input);
  }

  // As "eval" joins its words: by blanks.
  static ShellText joined(std::span<const ShellText> words) {
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

  [[nodiscard]] ShellWord source(const ShellText& word) const { return sources_.word(word); }

  // A line that begins with an argument, directly below a command with arguments of its kind, or
  // with a program that may take them: the backslash between them was forgotten.
  bool lost_continuation(const std::string& first, std::size_t begin) {
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
    script_.findings.push_back(
        {Severity::error, "missing_continuation", sources_.place(in_.letter(*command_end_)),
         fmt::format("no backslash ends the line, so the command ends here and the line below, "
                     "which begins with {}, is a command of its own",
                     shown(first)),
         "end the line with a backslash", "bash(1), quoting", continued_line()});
    return true;
  }

  // A backslash at the end of the command's last line, whose remark goes above the command.
  std::vector<Edit> continued_line() {
    const std::size_t end = *command_end_;
    if (!command_remark_) return edit_of(sources_, in_, end, end, " \\");
    std::size_t behind = *command_remark_;
    while (behind > 0 && is_shell_blank(in_.text[behind - 1])) --behind;
    auto fix = edit_of(sources_, in_, behind, end, " \\");
    if (!fix.empty() && in_.letters == nullptr) {
      fix.push_back(words_.remark_above(command_begin_, *command_remark_, end));
    }
    return fix;
  }

  // "bash other.sh a b", "srun bash -c '...'": read with its arguments, and with what is exported.
  void start_shell(std::span<const ShellText> words, const ShellText& input) {
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

  void start_file(const ShellText& name, std::span<const ShellText> arguments) {
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

  // With the variables that are handed on, which alone it may change.
  template <class Read>
  void in_new_shell(std::span<const ShellText> arguments, const Read& read_it) {
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

  // A function's body, in place of the command that names it.
  bool call(const std::string& name, std::span<const ShellText> words) {
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
  void read_uncalled() {
    for (auto& [name, function] : functions_) {
      if (std::exchange(function.called, true)) continue;
      forget_arguments();
      const ShellText body = function.body;
      read_again(body);
      return read_uncalled();
    }
  }

  // "export A B", of variables that are set already.
  void export_names(std::span<const ShellText> names) {
    for (const ShellText& name : names) {
      const auto found = variables_.find(plain(name));
      if (found == variables_.end() || found->second.is_array) continue;
      found->second.exported = true;
      const ShellText& value = found->second.values.front();
      if (is_resolved(value)) exported_[found->first] = plain(value);
    }
  }

  void set_arguments(std::span<const ShellText> arguments) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      variables_[fmt::format("{}", i + 1)] = {.values = {arguments[i]}};
    }
    variables_["@"] =
        variables_["*"] = {.is_array = true, .values = {arguments.begin(), arguments.end()}};
  }

  // After a "shift", whose count is not followed.
  void forget_arguments() {
    std::erase_if(variables_, [](const auto& v) { return is_argument(v.first); });
  }

  // "$1", "$@".
  static bool is_argument(const std::string& name) {
    return name == "@" || name == "*" || (name[0] >= '0' && name[0] <= '9');
  }

  void set_unknown(const ShellText& name) {
    ShellText value = name;
    for (ShellLetter& l : value) l.certainty = Certainty::unknown;
    variables_[plain(name)] = {.values = {value}};
  }

  ShellScript& script_;
  const FindFile& find_file_;
  ShellSources sources_;
  ShellCursor in_;
  ShellVariables variables_;
  Environment exported_;
  ShellWordReader words_{in_, variables_, sources_, script_.findings};
  ShellBranches branches_;
  struct Function {
    ShellText body;
    bool called = false;
  };
  struct OpenBody {
    std::string name;
    std::size_t begin = 0;
  };
  struct Outside {
    ShellVariables variables;
    int depth = 0;  // of brackets
  };
  std::map<std::string, Function> functions_;
  std::vector<OpenBody> bodies_;  // that are being read
  std::string opens_function_;    // behind "NAME()"
  std::vector<Outside> outside_;  // of subshells, which change nothing there
  std::map<std::string, std::optional<ShellVariable>> before_;  // of variables set before a command
  bool sets_next_ = false;                                      // behind "for"
  bool asks_case_ = false;                                      // behind "case"
  int open_brackets_ = 0;
  std::optional<std::size_t> remark_at_, command_remark_;  // of this statement, and that before
  std::size_t command_begin_ = 0;                          // of one that lines are added to
  std::optional<std::size_t> command_end_;                 // of the one before, in the same text
  std::set<std::string> handed_;                           // variables set before this command
  std::map<std::string, ShellText> written_;               // files that it has written so far
  int sourced_deep_ = 0;
  int reads_ = 0;
};

}  // namespace

ShellScript read_shell(std::string_view text, const std::string& name, const FindFile& find_file) {
  ShellScript script;
  ScriptReader reader(script, find_file);
  reader.read(text, name);
  reader.finish();
  return script;
}

}  // namespace qplan
