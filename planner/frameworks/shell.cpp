#include "planner/frameworks/shell.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "models/error.h"
#include "planner/frameworks/shell_arithmetic.h"

namespace qplan {
namespace {

// What a reader knows of a character: it is there; it is there if a branch is taken; it spells
// something that only a run can tell.
enum class Certainty : std::uint8_t { known, perhaps, unknown };

// One character of a word, with where it was written.
struct Letter {
  char c = 0;
  std::uint16_t file = 0;
  Certainty certainty = Certainty::known;
  std::size_t at = 0;
};
using Text = std::vector<Letter>;

// Where a piece of text stands: plain words fall apart at the blanks of a variable's value.
enum class Mode : std::uint8_t { word, assignment, quoted };

struct Variable {
  bool is_array = false;
  std::vector<Text> values;  // one, unless it is an array
};

constexpr std::size_t kMostCommands = 10'000;
constexpr std::size_t kMostLetters = std::size_t{1} << 22U;
constexpr int kDeepestSource = 8;
constexpr int kDeepest = 100;

constexpr std::array<std::string_view, 14> kKeywords{"if",   "then", "else", "elif",  "fi",
                                                     "for",  "do",   "done", "while", "until",
                                                     "case", "esac", "{",    "}"};

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

std::string plain(const Text& text) {
  std::string result;
  for (const Letter& letter : text) result += letter.c;
  return result;
}

bool is_resolved(const Text& text) {
  return std::none_of(text.begin(), text.end(),
                      [](const Letter& l) { return l.certainty != Certainty::known; });
}

class Reader {
 public:
  Reader(ShellScript& script, const FindFile& find_file) : script_(script), find_file_(find_file) {}

  void read(std::string_view text, const std::string& name, int depth) {
    if (depth > kDeepestSource) return;
    const Source outer = source_;
    const std::size_t outer_at = at_;
    names_.push_back(name);
    lines_.emplace_back();
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') lines_.back().push_back(i);
    }
    source_ = {text, static_cast<std::uint16_t>(names_.size() - 1), depth};
    at_ = 0;
    while (at_ < text.size() && script_.commands.size() < kMostCommands) command();
    source_ = outer;
    at_ = outer_at;
  }

  void finish() {
    for (const auto& [name, variable] : variables_) {
      if (!variable.is_array) continue;
      for (const Text& value : variable.values) script_.arrays[name].push_back(word_of(value));
    }
  }

 private:
  struct Source {
    std::string_view text;
    std::uint16_t file = 0;
    int depth = 0;
  };
  struct HereDocument {
    std::string end;
    bool strips_tabs = false, expands = true;
    std::string target;
  };

  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < source_.text.size() ? source_.text[at_ + ahead] : '\0';
  }
  [[nodiscard]] bool at_end() const { return at_ >= source_.text.size(); }
  [[nodiscard]] int line_of(std::uint16_t file, std::size_t offset) const {
    const auto& ends = lines_[file];
    return static_cast<int>(std::lower_bound(ends.begin(), ends.end(), offset) - ends.begin()) + 1;
  }
  [[nodiscard]] Place here() const { return {names_[source_.file], line_of(source_.file, at_)}; }
  [[nodiscard]] Letter letter(char c, std::size_t at,
                              Certainty certainty = Certainty::known) const {
    return {c, source_.file, certainty, at};
  }

  ShellWord word_of(const Text& text) const {
    ShellWord word;
    word.text = plain(text);
    word.resolved = is_resolved(text);
    if (text.empty()) return word;
    word.place = {names_[text.front().file], line_of(text.front().file, text.front().at)};
    bool together = true;
    for (std::size_t i = 1; i < text.size(); ++i) {
      together = together && text[i].file == text[0].file && text[i].at == text[i - 1].at + 1;
    }
    if (together) word.span = {text.front().at, text.back().at + 1};
    return word;
  }

  // ---- variables ----

  void append_unknown(Text& to, std::string_view spelled, std::size_t from) {
    for (std::size_t i = 0; i < spelled.size(); ++i) {
      to.push_back(letter(spelled[i], from + i, Certainty::unknown));
    }
  }

  const Variable* find(const std::string& name) const {
    const auto found = variables_.find(name);
    return found == variables_.end() ? nullptr : &found->second;
  }

  // "$NAME", "${NAME}", "${NAME:-word}", "${NAME[@]}", "$((...))", "$(...)". Appends to the last of
  // `words`; an array makes several of them.
  void expand(std::vector<Text>& words, Mode mode) {
    const std::size_t from = at_++;  // the '$'
    if (peek() == '(' && peek(1) == '(') return arithmetic(words.back(), from);
    if (peek() == '(') {
      skip_brackets('(', ')');
      return append_unknown(words.back(), source_.text.substr(from, at_ - from), from);
    }
    if (peek() == '{') return braces(words, from, mode);
    const std::size_t begin = at_;
    if (is_name(peek()) && (peek() < '0' || peek() > '9')) {
      while (is_name(peek())) ++at_;
    } else if (!at_end() &&
               std::string_view("0123456789@*#?$!-").find(peek()) != std::string_view::npos) {
      ++at_;
    }
    const std::string name(source_.text.substr(begin, at_ - begin));
    if (name.empty()) {
      words.back().push_back(letter('$', from));
      return;
    }
    insert(words, name, source_.text.substr(from, at_ - from), from, mode, false);
  }

  void insert(std::vector<Text>& words, const std::string& name, std::string_view spelled,
              std::size_t from, Mode mode, bool all) {
    const Variable* const variable = find(name);
    if (variable == nullptr) return append_unknown(words.back(), spelled, from);
    if (variable->values.empty()) return;
    const std::size_t count = all ? variable->values.size() : 1;
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) words.emplace_back();
      add_value(words, variable->values[i], mode);
    }
  }

  // Outside quotes a value falls apart at its blanks.
  void add_value(std::vector<Text>& words, const Text& value, Mode mode) {
    letters_ += value.size();
    if (letters_ > kMostLetters) {
      throw Error(
          fmt::format("{}: its variables grow beyond {} characters", names_.front(), kMostLetters));
    }
    bool gap = false;
    for (const Letter& l : value) {
      if (mode == Mode::word && l.certainty != Certainty::unknown &&
          (is_blank(l.c) || l.c == '\n')) {
        gap = true;
        continue;
      }
      if (gap && !words.back().empty()) words.emplace_back();
      gap = false;
      words.back().push_back(l);
    }
    if (gap && !words.back().empty()) words.emplace_back();
  }

  void skip_brackets(char open, char close) {
    int depth = 0;
    while (!at_end()) {
      const char c = source_.text[at_++];
      if (c == '\\') {
        ++at_;
      } else if (c == open) {
        ++depth;
      } else if (c == close && --depth == 0) {
        return;
      }
    }
    at_ = std::min(at_, source_.text.size());
  }

  void arithmetic(Text& to, std::size_t from) {
    skip_brackets('(', ')');
    const std::string_view spelled = source_.text.substr(from, at_ - from);
    std::string inside;
    for (std::size_t i = 3; i + 2 < spelled.size();) {
      if (!is_name(spelled[i]) && spelled[i] != '$') {
        inside += spelled[i++];
        continue;
      }
      std::size_t to_at = i + (spelled[i] == '$' ? 1 : 0);
      const bool braced = to_at < spelled.size() && spelled[to_at] == '{';
      if (braced) ++to_at;
      const std::size_t name_at = to_at;
      while (to_at < spelled.size() && is_name(spelled[to_at])) ++to_at;
      const std::string name(spelled.substr(name_at, to_at - name_at));
      if (braced && to_at < spelled.size()) ++to_at;
      i = std::max(to_at, i + 1);
      const Variable* const variable = find(name);
      const bool known =
          variable != nullptr && !variable->values.empty() && is_resolved(variable->values.front());
      inside += known ? plain(variable->values.front()) : name;
    }
    const auto value = shell_arithmetic(inside);
    if (!value) return append_unknown(to, spelled, from);
    for (const char c : fmt::format("{}", *value)) to.push_back(letter(c, from));
  }

  void braces(std::vector<Text>& words, std::size_t from, Mode mode) {
    ++at_;
    const bool counts = peek() == '#';
    if (counts) ++at_;
    const std::size_t begin = at_;
    while (is_name(peek())) ++at_;
    const std::string name(source_.text.substr(begin, at_ - begin));
    const std::size_t tail = at_;
    at_ = from + 1;
    skip_brackets('{', '}');
    const std::size_t end = at_;
    const std::string_view spelled = source_.text.substr(from, end - from);
    const std::string_view rest =
        end > tail + 1 ? source_.text.substr(tail, end - 1 - tail) : std::string_view();
    if (!counts && (rest == "[@]" || rest == "[*]")) {
      return insert(words, name, spelled, from, mode, true);
    }
    if (!counts && rest.empty()) return insert(words, name, spelled, from, mode, false);
    const bool defaults = rest.starts_with(":-") || rest.starts_with("-") ||
                          rest.starts_with(":=") || rest.starts_with("=");
    if (!counts && defaults) {
      const Variable* const variable = find(name);
      const bool set =
          variable != nullptr && !variable->values.empty() && !variable->values.front().empty();
      if (set) return insert(words, name, spelled, from, mode, false);
      // The environment may say otherwise; a default is what a plain run takes.
      at_ = tail + (rest.starts_with(":") ? 2 : 1);
      while (at_ < end - 1) piece(words, mode);
      at_ = end;
      return;
    }
    append_unknown(words.back(), spelled, from);
  }

  // ---- words ----

  // One quoted stretch, variable or character of a word.
  void piece(std::vector<Text>& words, Mode mode) {
    if (++depth_ > kDeepest) {
      throw Error(fmt::format("{}: quotes and variables are nested deeper than {}", names_.front(),
                              kDeepest));
    }
    const char c = peek();
    if (c == '\\') {
      ++at_;
      if (peek() == '\n') {
        ++at_;
      } else if (!at_end()) {
        words.back().push_back(letter(peek(), at_));
        ++at_;
      }
    } else if (c == '\'' && mode != Mode::quoted) {
      ++at_;
      while (!at_end() && peek() != '\'') {
        words.back().push_back(letter(peek(), at_));
        ++at_;
      }
      ++at_;
    } else if (c == '"') {
      ++at_;
      while (!at_end() && peek() != '"') piece(words, Mode::quoted);
      ++at_;
    } else if (c == '$') {
      expand(words, mode);
    } else if (c == '`') {
      const std::size_t from = at_++;
      while (!at_end() && peek() != '`') ++at_;
      if (!at_end()) ++at_;
      append_unknown(words.back(), source_.text.substr(from, at_ - from), from);
    } else {
      words.back().push_back(letter(c, at_));
      ++at_;
    }
    at_ = std::min(at_, source_.text.size());
    --depth_;
  }

  // A backslash that was meant to continue the line, with blanks or a remark behind it.
  bool broken_continuation() {
    if (peek() != '\\' || !is_blank(peek(1))) return false;
    std::size_t end = at_ + 1;
    while (end < source_.text.size() && is_blank(source_.text[end])) ++end;
    const char next = end < source_.text.size() ? source_.text[end] : '\n';
    if (next != '#' && next != '\n') return false;
    while (end < source_.text.size() && source_.text[end] != '\n') ++end;
    if (end == at_ + 2 && source_.text[at_ + 1] == '\r') {  // a file from Windows
      at_ = std::min(end + 1, source_.text.size());
      return true;
    }
    const Edit edit{names_[source_.file], at_ + 1, end, ""};
    const auto same =
        std::find_if(script_.findings.begin(), script_.findings.end(), [&](const Finding& f) {
          return f.rule == "broken_continuation" && f.place.file == names_[source_.file];
        });
    if (same != script_.findings.end()) {  // said once, with the other lines
      same->message += fmt::format("{} {}", same->fix.size() == 1 ? "; so do lines" : ",",
                                   line_of(source_.file, at_));
      same->fix.push_back(edit);
      at_ = std::min(end + 1, source_.text.size());
      return true;
    }
    script_.findings.push_back(
        {Severity::error,
         "broken_continuation",
         here(),
         "the backslash is not the last character of its line, so the command ends here and the "
         "lines below are commands of their own",
         "put remarks on lines of their own, outside the command",
         "bash(1), quoting",
         {edit}});
    at_ = std::min(end + 1, source_.text.size());
    return true;
  }

  void skip_space() {
    while (!at_end()) {
      if (is_blank(peek())) {
        ++at_;
      } else if (peek() == '\\' && peek(1) == '\n') {
        at_ += 2;
      } else if (!broken_continuation()) {
        return;
      }
    }
  }

  void remark() {
    constexpr std::string_view kBatch = "#SBATCH";
    const bool batch = source_.text.substr(at_).starts_with(kBatch);
    if (batch) at_ += kBatch.size();
    while (!at_end() && peek() != '\n') {
      if (!batch) {
        ++at_;
        continue;
      }
      while (is_blank(peek())) ++at_;
      Text word;
      while (!at_end() && peek() != '\n' && !is_blank(peek())) {
        word.push_back(letter(peek(), at_));
        ++at_;
      }
      if (!word.empty()) script_.directives.push_back(word_of(word));
    }
  }

  [[nodiscard]] bool ends_word() const {
    const char c = peek();
    return at_end() || is_blank(c) || c == '\n' || c == ';' || c == '|' || c == '&' || c == '<' ||
           c == '>' || c == '(' || c == ')';
  }

  std::vector<Text> word() {
    std::vector<Text> words(1);
    bool quoted = false;
    while (!ends_word()) {
      if (broken_continuation()) break;
      quoted = quoted || peek() == '"' || peek() == '\'';
      const std::size_t before = at_;
      piece(words, Mode::word);
      if (at_ == before) ++at_;
    }
    if (!quoted) std::erase_if(words, [](const Text& text) { return text.empty(); });
    return words;
  }

  // ---- commands ----

  // NAME=..., NAME+=..., NAME=(...). The value is unknown where it depends on a branch or a loop.
  bool assignment(std::map<std::string, std::string>& environment) {
    std::size_t end = at_;
    while (end < source_.text.size() && is_name(source_.text[end])) ++end;
    if (end == at_ || (peek() >= '0' && peek() <= '9')) return false;
    const bool adds = end + 1 < source_.text.size() && source_.text[end] == '+';
    const std::size_t equals = end + (adds ? 1 : 0);
    if (equals >= source_.text.size() || source_.text[equals] != '=') return false;
    const std::string name(source_.text.substr(at_, end - at_));
    at_ = equals + 1;
    Variable value;
    if (peek() == '(') {
      ++at_;
      value.is_array = true;
      value.values = array_items();
    } else {
      std::vector<Text> words(1);
      while (!ends_word()) {
        const std::size_t before = at_;
        piece(words, Mode::assignment);
        if (at_ == before) ++at_;
      }
      value.values = {words.front()};
    }
    if (nesting_ > 0) {
      for (Text& text : value.values) {
        for (Letter& l : text) l.certainty = std::max(l.certainty, Certainty::perhaps);
      }
    }
    Variable& variable = variables_[name];
    if (adds && value.is_array) {
      variable.is_array = true;
      variable.values.insert(variable.values.end(), value.values.begin(), value.values.end());
    } else if (adds && !variable.values.empty()) {
      Text& text = variable.values.front();
      text.insert(text.end(), value.values.front().begin(), value.values.front().end());
    } else {
      variable = std::move(value);
    }
    if (!variable.is_array && is_resolved(variable.values.front())) {
      environment[name] = plain(variable.values.front());
    }
    return true;
  }

  std::vector<Text> array_items() {
    std::vector<Text> items;
    while (!at_end() && peek() != ')') {
      skip_space();
      if (peek() == '\n') {
        ++at_;
      } else if (peek() == '#') {
        while (!at_end() && peek() != '\n') ++at_;
      } else if (!at_end() && peek() != ')') {
        const std::size_t before = at_;
        for (Text& text : word()) items.push_back(std::move(text));
        if (at_ == before) ++at_;
      }
    }
    if (!at_end()) ++at_;
    return items;
  }

  void redirection(std::string& target, std::vector<HereDocument>& documents) {
    const bool in = peek() == '<';
    const std::size_t from = at_;
    while (peek() == '<' || peek() == '>' || peek() == '&') ++at_;
    const bool here_document = in && source_.text.substr(from, at_ - from) == "<<";
    HereDocument document;
    if (here_document && peek() == '-') {
      document.strips_tabs = true;
      ++at_;
    }
    skip_space();
    document.expands = peek() != '\'' && peek() != '"' && peek() != '\\';
    const std::vector<Text> words = word();
    const std::string name = words.empty() ? "" : plain(words.front());
    if (here_document) {
      document.end = name;
      documents.push_back(document);
    } else if (!in) {
      target = name;
    }
  }

  void here_document(HereDocument document, const std::string& target) {
    const Place place{names_[source_.file], line_of(source_.file, at_)};
    ShellFile file{target, "", place, true};
    while (!at_end()) {
      const std::size_t end = std::min(source_.text.find('\n', at_), source_.text.size());
      std::string_view line = source_.text.substr(at_, end - at_);
      if (document.strips_tabs) {
        while (line.starts_with('\t')) line.remove_prefix(1);
      }
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line == document.end) {
        at_ = std::min(end + 1, source_.text.size());
        break;
      }
      if (document.expands) {
        std::vector<Text> words(1);
        while (at_ < end) {
          if (peek() == '$') {
            expand(words, Mode::quoted);
          } else {
            words.back().push_back(letter(peek(), at_));
            ++at_;
          }
        }
        file.resolved = file.resolved && is_resolved(words.front());
        file.text += plain(words.front()) + '\n';
      } else {
        file.text += std::string(line) + '\n';
      }
      at_ = std::min(end + 1, source_.text.size());
    }
    if (!target.empty()) script_.files.push_back(std::move(file));
  }

  void command() {
    ShellCommand command;
    command.environment = exported_;
    std::string target;
    std::vector<HereDocument> documents;
    std::vector<Text> words;
    bool exports = false;
    const auto between = [&] { return peek() == ';' || peek() == '|' || peek() == '&'; };
    for (;;) {
      skip_space();
      if (at_end() || peek() == '\n' || between()) break;
      if (peek() == '#') {
        remark();
      } else if (peek() == '<' || peek() == '>') {
        redirection(target, documents);
      } else if (peek() == '(' || peek() == ')') {
        ++at_;
      } else if ((words.empty() || exports) &&
                 assignment(exports ? exported_ : command.environment)) {
        continue;
      } else {
        const std::size_t before = at_;
        for (Text& text : word()) words.push_back(std::move(text));
        if (at_ == before) ++at_;
        const std::string first = words.empty() ? "" : plain(words.front());
        exports =
            first == "export" || first == "declare" || first == "local" || first == "readonly";
      }
    }
    while (between()) ++at_;
    if (peek() == '\n') ++at_;
    for (const HereDocument& document : documents) here_document(document, target);
    run(std::move(command), words);
  }

  void run(ShellCommand command, const std::vector<Text>& words) {
    if (words.empty()) return;
    std::size_t from = 0;
    for (; from < words.size(); ++from) {
      const std::string word = plain(words[from]);
      if (std::find(kKeywords.begin(), kKeywords.end(), word) == kKeywords.end()) break;
      if (word == "if" || word == "for" || word == "while" || word == "until" || word == "case") {
        ++nesting_;
      } else if (word == "fi" || word == "done" || word == "esac") {
        nesting_ = std::max(0, nesting_ - 1);
      }
    }
    if (from == words.size()) return;
    if (plain(words[from]) == "eval" && from + 1 < words.size()) ++from;
    const std::string first = plain(words[from]);
    if (first == "source" || first == ".") {
      if (from + 1 < words.size()) include(words[from + 1]);
      return;
    }
    if (first == "read" || first == "printf" || first == "mapfile") {
      for (std::size_t i = from + 1; i < words.size(); ++i) {
        Text unknown = words[i];
        for (Letter& l : unknown) l.certainty = Certainty::unknown;
        variables_[plain(words[i])] = {false, {unknown}};
      }
      return;
    }
    for (std::size_t i = from; i < words.size(); ++i) command.words.push_back(word_of(words[i]));
    script_.commands.push_back(std::move(command));
  }

  void include(const Text& name) {
    const ShellWord word = word_of(name);
    // What is unknown of a path is mostly the script's own folder; the file's name is enough.
    const std::string base = std::filesystem::path(word.text).filename().string();
    auto found = find_file_ ? find_file_(base) : std::nullopt;
    if (found) {
      sourced_.push_back(std::make_unique<FoundFile>(std::move(*found)));
      read(sourced_.back()->text, sourced_.back()->name, source_.depth + 1);
      return;
    }
    script_.findings.push_back(
        {Severity::note, "sourced_file_missing", word.place,
         fmt::format("{} is read here and is not among the files given", shown(base)),
         fmt::format("give {} too", shown(base)), ""});
  }

  ShellScript& script_;
  const FindFile& find_file_;
  Source source_;
  std::size_t at_ = 0;
  std::size_t letters_ = 0;
  int nesting_ = 0;  // of branches and loops
  int depth_ = 0;    // of quotes and variables
  std::vector<std::string> names_;
  std::vector<std::vector<std::size_t>> lines_;  // where each file's lines end
  std::vector<std::unique_ptr<FoundFile>> sourced_;
  std::map<std::string, Variable> variables_;
  std::map<std::string, std::string> exported_;
};

}  // namespace

ShellScript read_shell(std::string_view text, const std::string& name, const FindFile& find_file) {
  ShellScript script;
  Reader reader(script, find_file);
  reader.read(text, name, 0);
  reader.finish();
  return script;
}

}  // namespace qplan
