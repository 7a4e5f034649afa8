#include "planner/frameworks/readers/python_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "models/ascii.h"
#include "planner/frameworks/readers/formats.h"

namespace qplan {
namespace {

bool begins_name(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return is_letter(c) || c == '_' || byte >= 0x80;
}

enum class Kind : std::uint8_t { name, number, string, symbol, line_end };

struct Token {
  Kind kind = Kind::line_end;
  std::string text;
  int line = 0, column = 0;
  int depth = 0;  // of brackets around it
};

bool is_keyword(std::string_view word) {
  constexpr std::array<std::string_view, 32> kWords{
      "and",    "as",   "assert", "async",  "await",  "break",   "class",    "continue",
      "def",    "del",  "elif",   "else",   "except", "finally", "for",      "from",
      "global", "if",   "import", "in",     "is",     "lambda",  "nonlocal", "not",
      "or",     "pass", "raise",  "return", "try",    "while",   "with",     "yield"};
  return std::find(kWords.begin(), kWords.end(), word) != kWords.end();
}

// Words that begin a block, whose line has a ':'.
bool begins_block(std::string_view word) {
  constexpr std::array<std::string_view, 11> kWords{
      "def", "class", "if", "elif", "else", "for", "while", "with", "try", "except", "finally"};
  return std::find(kWords.begin(), kWords.end(), word) != kWords.end();
}

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  void scan() {
    while (at_ < text_.size() && !slip) token();
    if (slip) return;
    if (!open_.empty()) {
      fail(open_.back().line, fmt::format("'{}' is never closed", open_.back().text));
    }
    end_line();
  }

  std::vector<Token> tokens;
  std::optional<PythonSlip> slip;
  bool has_tabs = false;

 private:
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  void fail(int line, std::string message) {
    if (!slip) slip = {line, std::move(message)};
  }
  void add(Kind kind, std::string text, int line, std::size_t from) {
    tokens.push_back({kind, std::move(text), line, static_cast<int>(from - line_start_),
                      static_cast<int>(open_.size())});
  }
  void end_line() {
    if (!tokens.empty() && tokens.back().kind != Kind::line_end && open_.empty()) {
      add(Kind::line_end, "", line_, at_);
    }
  }
  void new_line() {
    ++line_;
    line_start_ = at_;
  }

  void token() {
    const char c = peek();
    if (c == '\n') {
      end_line();
      ++at_;
      return new_line();
    }
    if (c == '\\' && (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n'))) {
      at_ += peek(1) == '\n' ? 2U : 3U;
      return new_line();
    }
    if (c == ' ' || c == '\t' || c == '\r' || c == '\f') {
      has_tabs = has_tabs || c == '\t';
      ++at_;
      return;
    }
    if (c == '#') {
      at_ = std::min(text_.find('\n', at_), text_.size());
      return;
    }
    if (c == '"' || c == '\'') return string(at_);
    if (begins_name(c)) return word();
    if (is_digit(c) || (c == '.' && is_digit(peek(1)))) return number();
    symbol();
  }

  void word() {
    const std::size_t from = at_;
    while (begins_name(peek()) || is_digit(peek())) ++at_;
    // r"...", f'...', Rb"""..."""
    if ((peek() == '"' || peek() == '\'') && at_ - from <= 2) return string(from);
    add(Kind::name, std::string(text_.substr(from, at_ - from)), line_, from);
  }

  // "0.3x"; "1if", which Python still reads, is none.
  void check_number(std::string_view written) {
    if (written.size() > 1 && written.front() == '0' && is_letter(written[1])) return;
    constexpr std::string_view kDigits = "0123456789_.";
    constexpr std::array<std::string_view, 6> kBehind{"if", "or", "and", "in", "is", "else"};
    std::size_t end = std::min(written.find_first_not_of(kDigits), written.size());
    std::string_view rest = written.substr(end);
    const bool exponent = rest.size() > 1 && (rest.front() == 'e' || rest.front() == 'E') &&
                          (is_digit(rest[1]) || rest[1] == '+' || rest[1] == '-');
    if (exponent) {
      end = std::min(rest.find_first_not_of(kDigits, 2), rest.size());
      rest.remove_prefix(end);
    }
    if (rest.empty() || !is_letter(rest.front()) || rest == "j" || rest == "J") return;
    const auto begins = [&](std::string_view word) { return rest.starts_with(word); };
    if (std::any_of(kBehind.begin(), kBehind.end(), begins)) return;
    fail(line_, fmt::format("{} is no number", written));
  }

  void number() {
    const std::size_t from = at_;
    for (;;) {
      const char c = peek(), before = at_ > from ? text_[at_ - 1] : '\0';
      const bool exponent = (c == '+' || c == '-') && (before == 'e' || before == 'E') &&
                            text_.substr(from, 2) != "0x" && text_.substr(from, 2) != "0X";
      if (!begins_name(c) && !is_digit(c) && c != '.' && !exponent) break;
      ++at_;
    }
    check_number(text_.substr(from, at_ - from));
    add(Kind::number, std::string(text_.substr(from, at_ - from)), line_, from);
  }

  void string(std::size_t from) {
    const char quote = peek();
    const bool triple = peek(1) == quote && peek(2) == quote;
    const int line = line_;
    const std::size_t start = line_start_;
    at_ += triple ? 3U : 1U;
    while (at_ < text_.size()) {
      const char c = peek();
      if (c == '\\') {
        at_ += 2;
        if (at_ <= text_.size() && text_[at_ - 1] == '\n') new_line();
        continue;
      }
      if (c == '\n') {
        if (!triple) return fail(line, "a string does not end on its line");
        ++at_;
        new_line();
        continue;
      }
      if (c == quote && (!triple || (peek(1) == quote && peek(2) == quote))) {
        at_ += triple ? 3U : 1U;
        tokens.push_back({Kind::string, "", line, static_cast<int>(from - start),
                          static_cast<int>(open_.size())});
        return;
      }
      ++at_;
    }
    at_ = std::min(at_, text_.size());
    fail(line, "a string is never closed");
  }

  void symbol() {
    const char c = peek();
    const std::size_t from = at_;
    constexpr std::string_view kOpen = "([{", kClose = ")]}";
    if (const std::size_t kind = kClose.find(c); kind != std::string_view::npos) {
      if (open_.empty()) return fail(line_, fmt::format("'{}' closes nothing", c));
      if (kOpen.find(open_.back().text) != kind) {
        return fail(line_, fmt::format("'{}' closes the '{}' of line {}", c, open_.back().text,
                                       open_.back().line));
      }
      open_.pop_back();
      ++at_;
      return add(Kind::symbol, std::string(1, c), line_, from);
    }
    constexpr std::array<std::string_view, 24> kLong{
        "**=", "//=", ">>=", "<<=", "...", "==", "!=", "<=", ">=", ":=", "->", "+=",
        "-=",  "*=",  "/=",  "%=",  "&=",  "|=", "^=", "@=", "**", "//", ">>", "<<"};
    std::string text(1, c);
    for (const std::string_view sign : kLong) {
      if (text_.substr(at_).starts_with(sign)) {
        text = sign;
        break;
      }
    }
    constexpr std::string_view kKnown = "+-*/%@&|^~<>()[]{},:.;=!";
    if (kKnown.find(c) == std::string_view::npos) {
      return fail(line_, fmt::format("'{}' is no sign of Python's", c));
    }
    at_ += text.size();
    add(Kind::symbol, text, line_, from);
    if (kOpen.find(c) != std::string_view::npos) open_.push_back(tokens.back());
  }

  std::string_view text_;
  std::size_t at_ = 0, line_start_ = 0;
  int line_ = 1;
  std::vector<Token> open_;
};

// A line of Python, however many of the file's it takes.
struct Statement {
  std::vector<Token> tokens;
  [[nodiscard]] const Token& first() const { return tokens.front(); }
};

std::vector<Statement> statements_of(const std::vector<Token>& tokens) {
  std::vector<Statement> statements(1);
  for (const Token& token : tokens) {
    if (token.kind != Kind::line_end) {
      statements.back().tokens.push_back(token);
    } else if (!statements.back().tokens.empty()) {
      statements.emplace_back();
    }
  }
  if (statements.back().tokens.empty()) statements.pop_back();
  return statements;
}

bool ends_value(const Token& t) {
  return (t.kind == Kind::name && !is_keyword(t.text)) || t.kind == Kind::number ||
         t.kind == Kind::string || t.text == ")" || t.text == "]" || t.text == "}";
}

bool begins_value(const Token& t) {
  return (t.kind == Kind::name && !is_keyword(t.text)) || t.kind == Kind::number ||
         t.kind == Kind::string;
}

// "match x:", "type X = ...", "print x" of an older Python is refused as well.
bool is_soft(const Token& t) {
  return t.text == "match" || t.text == "case" || t.text == "type";
}

std::optional<PythonSlip> neighbours(const Statement& s) {
  for (std::size_t i = 1; i < s.tokens.size(); ++i) {
    const Token &a = s.tokens[i - 1], &b = s.tokens[i];
    const bool strings = a.kind == Kind::string && b.kind == Kind::string;
    if (ends_value(a) && begins_value(b) && !strings && !(i == 1 && is_soft(a))) {
      const std::string what = b.kind == Kind::string ? "a string" : "'" + b.text + "'";
      return PythonSlip{a.line, fmt::format("a ',' or an operator is missing before {}", what)};
    }
    const bool empty = b.text == "," && (a.text == "," || a.text == "(" || a.text == "[");
    if (empty) return PythonSlip{b.line, "a ',' has nothing before it"};
    const bool nothing = a.text == "=" && (b.text == "," || b.text == ")" || b.text == "=");
    if (nothing) return PythonSlip{a.line, "'=' is followed by no value"};
  }
  const Token& last = s.tokens.back();
  if (last.text == "=") return PythonSlip{last.line, "'=' is followed by no value"};
  return std::nullopt;
}

std::optional<PythonSlip> header(const Statement& s) {
  const std::size_t at = s.first().text == "async" && s.tokens.size() > 1 ? 1 : 0;
  const Token& word = s.tokens[at];
  if (word.kind != Kind::name || !begins_block(word.text)) return std::nullopt;
  const bool colon = std::any_of(s.tokens.begin(), s.tokens.end(), [&](const Token& t) {
    return t.text == ":" && t.depth == word.depth;
  });
  if (colon) return std::nullopt;
  return PythonSlip{word.line, fmt::format("a ':' is missing after '{}'", word.text)};
}

bool opens_block(const Statement& s) {
  return s.tokens.back().text == ":";
}

// Blocks are one deeper than their header, and end where an outer line stands.
std::optional<PythonSlip> depths(const std::vector<Statement>& statements) {
  std::vector<int> levels{0};
  bool expected = false;
  for (const Statement& s : statements) {
    const int column = s.first().column, line = s.first().line;
    if (expected && column <= levels.back()) {
      return PythonSlip{line, "an indented block is missing"};
    }
    if (!expected && column > levels.back()) return PythonSlip{line, "a line is indented too far"};
    if (column > levels.back()) levels.push_back(column);
    while (column < levels.back()) levels.pop_back();
    if (column != levels.back()) {
      return PythonSlip{line, "a line is indented as none of the blocks around it is"};
    }
    expected = opens_block(s);
  }
  if (expected) return PythonSlip{statements.back().first().line, "an indented block is missing"};
  return std::nullopt;
}

// f(a-b=1): what stands before '=' in a call is one name.
std::optional<PythonSlip> targets(const Statement& s) {
  for (std::size_t i = 0; i < s.tokens.size(); ++i) {
    const Token& t = s.tokens[i];
    // Parameters have annotations and defaults of their own.
    if (t.text == "def" || t.text == "lambda") return std::nullopt;
    if (t.text != "=" || t.depth == 0 || i < 2) continue;
    const Token &name = s.tokens[i - 1], &before = s.tokens[i - 2];
    const bool one = name.kind == Kind::name && (before.text == "(" || before.text == ",");
    if (!one) return PythonSlip{t.line, "before '=' stands no name alone"};
  }
  return std::nullopt;
}

// f(x=1, 2), and f(x) = 1
std::optional<PythonSlip> order(const Statement& s) {
  struct Bracket {
    bool call = false, keyword = false;
  };
  std::vector<Bracket> open;
  bool closed_call = false;
  for (std::size_t i = 0; i < s.tokens.size(); ++i) {
    const Token& t = s.tokens[i];
    if (t.text == "lambda" || t.text == "def" || t.text == "class") return std::nullopt;
    if (closed_call && t.text == "=" && t.depth == 0) {
      return PythonSlip{t.line, "a call stands where a name is given a value"};
    }
    closed_call = false;
    if (t.kind == Kind::symbol && (t.text == "(" || t.text == "[" || t.text == "{")) {
      open.push_back({t.text == "(" && i > 0 && ends_value(s.tokens[i - 1]), false});
    } else if (t.kind == Kind::symbol && (t.text == ")" || t.text == "]" || t.text == "}")) {
      if (open.empty()) return std::nullopt;
      closed_call = open.back().call;
      open.pop_back();
    } else if (!open.empty() && open.back().call && t.text == "=") {
      open.back().keyword = true;
    } else if (!open.empty() && open.back().keyword && t.text == "," && i + 2 < s.tokens.size()) {
      const Token &next = s.tokens[i + 1], &after = s.tokens[i + 2];
      const bool star = next.text == "*" || next.text == "**" || next.text == ")";
      if (!star && !(next.kind == Kind::name && after.text == "=")) {
        return PythonSlip{next.line, "a value without a name follows one with a name"};
      }
    }
  }
  return std::nullopt;
}

// f(x=1, x=2)
std::optional<PythonSlip> repeated(const Statement& s) {
  std::vector<std::set<std::string>> given;
  for (std::size_t i = 0; i < s.tokens.size(); ++i) {
    const Token& t = s.tokens[i];
    if (t.text == "lambda") return std::nullopt;  // whose parameters have defaults
    if (t.text == "(" || t.text == "[" || t.text == "{") given.emplace_back();
    if ((t.text == ")" || t.text == "]" || t.text == "}") && !given.empty()) given.pop_back();
    const bool keyword = t.kind == Kind::name && i > 0 && i + 1 < s.tokens.size() &&
                         s.tokens[i + 1].text == "=" &&
                         (s.tokens[i - 1].text == "(" || s.tokens[i - 1].text == ",");
    if (!keyword || given.empty()) continue;
    if (!given.back().insert(t.text).second) {
      return PythonSlip{t.line, fmt::format("{} is given twice", t.text)};
    }
  }
  return std::nullopt;
}

bool is_builtin(std::string_view name) {
  constexpr std::array<std::string_view, 74> kNames{
      "abs",           "all",        "any",          "ascii",    "bin",        "bool",
      "breakpoint",    "bytearray",  "bytes",        "callable", "chr",        "classmethod",
      "compile",       "complex",    "delattr",      "dict",     "dir",        "divmod",
      "enumerate",     "eval",       "exec",         "exit",     "filter",     "float",
      "format",        "frozenset",  "getattr",      "globals",  "hasattr",    "hash",
      "help",          "hex",        "id",           "input",    "int",        "isinstance",
      "issubclass",    "iter",       "len",          "list",     "locals",     "map",
      "max",           "memoryview", "min",          "next",     "object",     "oct",
      "open",          "ord",        "pow",          "print",    "property",   "quit",
      "range",         "repr",       "reversed",     "round",    "set",        "setattr",
      "slice",         "sorted",     "staticmethod", "str",      "sum",        "super",
      "tuple",         "type",       "vars",         "zip",      "__import__", "Exception",
      "BaseException", "__file__"};
  const bool error = name.ends_with("Error") || name.ends_with("Warning") ||
                     name.ends_with("Interrupt") || name.ends_with("Exit") ||
                     name.ends_with("Iteration") || name.starts_with("__") || name == "anext" ||
                     name == "aiter";
  return error || std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

std::vector<Statement> read_statements(std::string_view text) {
  Scanner scanner(text);
  scanner.scan();
  return scanner.slip ? std::vector<Statement>() : statements_of(scanner.tokens);
}

}  // namespace

std::optional<PythonSlip> python_slip(std::string_view text) {
  text.remove_prefix(byte_order_mark(text));
  Scanner scanner(text);
  scanner.scan();
  const auto statements = statements_of(scanner.tokens);
  std::optional<PythonSlip> first = scanner.slip;
  const auto earlier = [&](const std::optional<PythonSlip>& slip) {
    if (slip && (!first || slip->line < first->line)) first = slip;
  };
  if (!scanner.slip) {
    for (const Statement& s : statements) {
      earlier(neighbours(s));
      earlier(header(s));
      earlier(targets(s));
      earlier(order(s));
      earlier(repeated(s));
    }
    // Tabs count as Python says, not as columns do.
    if (!scanner.has_tabs && !statements.empty()) earlier(depths(statements));
  }
  return first;
}

std::vector<PythonImport> python_imports(std::string_view text) {
  std::vector<PythonImport> imports;
  for (const Statement& s : read_statements(text)) {
    if (s.first().text != "from") continue;
    PythonImport found;
    found.line = s.first().line;
    std::size_t i = 1;
    for (; i < s.tokens.size() && s.tokens[i].text != "import"; ++i)
      found.module += s.tokens[i].text;
    for (++i; i < s.tokens.size(); ++i) {
      const Token& t = s.tokens[i];
      const bool alias = s.tokens[i - 1].text == "as";
      if ((t.kind == Kind::name && !is_keyword(t.text) && !alias) || t.text == "*") {
        found.names.push_back(t.text);
      }
    }
    imports.push_back(std::move(found));
  }
  return imports;
}

std::vector<PythonName> undefined_calls(std::string_view text) {
  const auto statements = read_statements(text);
  // Whatever stands where names are made, in this file as a whole: more than are in scope.
  std::set<std::string> defined;
  for (const Statement& s : statements) {
    const bool import = s.first().text == "import" || s.first().text == "from";
    for (std::size_t i = 0; i < s.tokens.size(); ++i) {
      const Token& t = s.tokens[i];
      if (t.text == "*" && import) return {};
      if (t.kind != Kind::name || is_keyword(t.text)) continue;
      const std::string before = i > 0 ? s.tokens[i - 1].text : "";
      const std::string after = i + 1 < s.tokens.size() ? s.tokens[i + 1].text : "";
      const bool called = after == "(" && before != "def" && before != "class";
      const bool attribute = before == ".";
      // A parameter, a target, an alias, an item of "for a, b in": anything but a call.
      if (import || (!called && !attribute)) {
        const bool made = import || before == "def" || before == "class" || before == "as" ||
                          before == "for" || before == "," || before == "(" || before == "lambda" ||
                          before == "*" || before == "**" || before == "global" || i == 0 ||
                          after == "=" || after == ":=" || after == ":";
        if (made) defined.insert(t.text);
      }
    }
  }
  std::vector<PythonName> undefined;
  for (const Statement& s : statements) {
    for (std::size_t i = 0; i + 1 < s.tokens.size(); ++i) {
      const Token& t = s.tokens[i];
      if (t.kind != Kind::name || is_keyword(t.text)) continue;
      const std::string before = i > 0 ? s.tokens[i - 1].text : "";
      if (before == "." || before == "def" || before == "class") continue;
      std::size_t end = i + 1;
      while (end + 1 < s.tokens.size() && s.tokens[end].text == ".") end += 2;
      if (end >= s.tokens.size() || s.tokens[end].text != "(") continue;
      if (!defined.contains(t.text) && !is_builtin(t.text) && !(i == 0 && is_soft(t))) {
        undefined.push_back({t.text, t.line});
      }
    }
  }
  return undefined;
}

}  // namespace qplan
