// Python configuration functions, read for the keywords of their calls without running them.

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "models/ascii.h"
#include "planner/frameworks/readers/formats.h"

namespace qplan {
namespace {

constexpr int kDeepest = 100;
constexpr std::size_t kMostCalls = 10'000;

using Constants = std::map<std::string, Json, std::less<>>;

class PythonReader {
 public:
  PythonReader(std::string_view text, const std::string& name, const Constants& constants)
      : text_(text), name_(name), constants_(constants) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') ends_.push_back(i);
    }
  }

  PythonText read() {
    while (at_ < text_.size()) {
      skip(true);
      if (at_ >= text_.size()) break;
      const char c = peek();
      if (is_name(c) && !is_digit(c)) {
        named(true, 0);
      } else if (c == '"' || c == '\'') {
        string();
      } else {
        ++at_;
      }
    }
    return std::move(result_);
  }

 private:
  struct Value {
    Json value;
    bool resolved = false;
  };

  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  [[nodiscard]] Place place(std::size_t at) const {
    const auto line = std::lower_bound(ends_.begin(), ends_.end(), at) - ends_.begin() + 1;
    return {name_, static_cast<int>(line)};
  }

  void skip(bool lines) {
    for (;;) {
      const char c = peek();
      if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n')) {
        ++at_;
      } else if (c == '\\' && peek(1) == '\n') {
        at_ += 2;
      } else if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else {
        return;
      }
    }
  }

  std::string string() {
    const char quote = peek();
    const bool triple = peek(1) == quote && peek(2) == quote;
    at_ += triple ? 3 : 1;
    std::string result;
    while (at_ < text_.size()) {
      if (peek() == '\\') {
        ++at_;
      } else if (peek() == quote && (!triple || (peek(1) == quote && peek(2) == quote))) {
        at_ += triple ? 3 : 1;
        return result;
      } else if (peek() == '\n' && !triple) {
        return result;  // not closed: what follows is code again
      }
      result += peek();
      ++at_;
    }
    at_ = std::min(at_, text_.size());
    return result;
  }

  std::string dotted() {
    const std::size_t from = at_;
    while (is_name(peek()) || (peek() == '.' && is_name(peek(1)))) ++at_;
    return std::string(text_.substr(from, at_ - from));
  }

  // A name: the start of a call, of an assignment (at a statement), or itself.
  Value named(bool statement, int depth) {
    const std::size_t from = at_;
    const std::string name = dotted();
    skip(false);
    if (peek() == '(') {
      call(name, from, depth);
      return {};
    }
    if (statement && assignment(name, from, depth)) return {};
    if (name == "True" || name == "False") return {name == "True", true};
    if (name == "None") return {nullptr, true};
    const auto constant = constants_.find(name);
    return constant == constants_.end() ? Value{} : Value{constant->second, true};
  }

  [[nodiscard]] bool assigns() const { return peek() == '=' && peek(1) != '='; }

  struct Target {
    std::string name;
    std::size_t begin = 0;
  };

  // "a = 1", "a = b = 1", "a, b = 1, 2", behind the first name. False: it is none.
  bool assignment(const std::string& name, std::size_t from, int depth) {
    const std::size_t behind = at_;
    std::vector<Target> targets{{name, from}};
    while (peek() == ',') {
      ++at_;
      skip(false);
      const std::size_t begin = at_;
      targets.push_back({dotted(), begin});
      skip(false);
      if (targets.back().name.empty()) break;
    }
    if (peek() == ')') ++at_;  // "(a, b) = ..."
    skip(false);
    if (!assigns()) {
      at_ = behind;
      return false;
    }
    ++at_;
    skip(false);
    if (targets.size() > 1) {
      several(targets, depth);
      return true;
    }
    // The same value for each.
    for (std::size_t begin = at_;; begin = at_) {
      const std::string next = dotted();
      skip(false);
      if (next.empty() || !assigns()) {
        at_ = begin;
        break;
      }
      targets.push_back({next, begin});
      ++at_;
      skip(false);
    }
    const PythonArgument value = argument("", depth);
    for (const Target& target : targets) assign(target, value);
    return true;
  }

  // Values one by one; of another number only a run can tell which is whose.
  void several(const std::vector<Target>& targets, int depth) {
    const std::size_t begin = at_;
    const bool closes = peek() == '(' || peek() == '[';
    if (closes) ++at_;
    std::vector<PythonArgument> values;
    do {
      if (!values.empty()) ++at_;
      skip(closes);
      values.push_back(argument("", closes ? depth + 1 : depth));
      skip(closes);
    } while (peek() == ',' && values.size() <= targets.size());
    if (closes && at_ < text_.size()) ++at_;
    const bool each = values.size() == targets.size();
    for (std::size_t i = 0; i < targets.size(); ++i) {
      PythonArgument value = each ? values[i] : values.front();
      if (!each) {
        value.value = nullptr;
        value.resolved = false;
        value.text = std::string(text_.substr(begin, std::max(at_, begin) - begin));
        value.span = {begin, at_};
      }
      assign(targets[i], std::move(value));
    }
  }

  void assign(const Target& target, PythonArgument value) {
    const std::size_t dot = target.name.rfind('.');
    value.name_span = {target.begin + (dot == std::string::npos ? 0 : dot + 1),
                       target.begin + target.name.size()};
    result_.assignments.push_back({target.name, std::move(value)});
  }

  void call(const std::string& callee, std::size_t from, int depth) {
    ++at_;
    const std::size_t mine = result_.calls.size();
    result_.calls.push_back({callee, {}, place(from), {from, from + callee.size()}});
    while (at_ < text_.size()) {
      skip(true);
      if (peek() == ')' || at_ >= text_.size()) break;
      if (peek() == ',') {
        ++at_;
        continue;
      }
      std::string keyword;
      Span keyword_span;
      const std::size_t before = at_;
      if (is_name(peek()) && !is_digit(peek())) {
        const std::string name = dotted();
        const std::size_t end = at_;
        skip(true);
        if (peek() == '=' && peek(1) != '=') {
          keyword = name;
          keyword_span = {before, end};
          ++at_;
          skip(true);
        } else {
          at_ = before;
        }
      }
      PythonArgument read = argument(keyword, depth + 1);
      read.name_span = keyword_span;
      if (at_ == before) ++at_;
      result_.calls[mine].arguments.push_back(std::move(read));
    }
    if (at_ < text_.size()) ++at_;
  }

  // An expression up to a comma or bracket of its own level. Values are known for literals and for
  // products and sums of them.
  PythonArgument argument(const std::string& name, int depth) {
    PythonArgument result{name, nullptr, "", place(at_), {}, true};
    const std::size_t from = at_;
    Value value = depth > kDeepest || result_.calls.size() > kMostCalls ? Value{} : sum(depth);
    const bool inside = depth > 0;
    skip(inside);
    const char next = peek();
    const bool ends = at_ >= text_.size() || next == ',' || next == ')' || next == ']' ||
                      next == '}' || next == '\n' || next == ';';
    if (!ends) {
      value = {};
      rest(inside, depth);
    }
    std::size_t end = at_;
    while (end > from && (text_[end - 1] == ' ' || text_[end - 1] == '\n')) --end;
    result.text = std::string(text_.substr(from, end - from));
    result.span = {from, end};
    result.value = value.value;
    result.resolved = value.resolved;
    return result;
  }

  // Over an expression that is not understood, still noticing the calls in it.
  void rest(bool inside, int depth) {
    int open = 0;
    while (at_ < text_.size()) {
      skip(inside || open > 0);
      const char c = peek();
      if (open == 0 && (c == ',' || c == ')' || c == ']' || c == '}')) return;
      if (open == 0 && !inside && (c == '\n' || c == ';')) return;
      if (at_ >= text_.size()) return;
      if (c == '"' || c == '\'') {
        string();
      } else if (is_name(c) && depth < kDeepest) {
        named(false, depth + 1);
      } else {
        if (c == '(' || c == '[' || c == '{') ++open;
        if (c == ')' || c == ']' || c == '}') --open;
        ++at_;
      }
    }
  }

  Value factor(int depth) {
    if (depth > kDeepest) return {};
    skip(depth > 0);
    const char c = peek();
    if (c == '"' || c == '\'') return {string(), true};
    if (is_digit(c) || (c == '.' && is_digit(peek(1)))) return number();
    if (c == '-') {
      ++at_;
      Value value = factor(depth + 1);
      if (!value.resolved || !value.value.is_number()) return {};
      value.value = value.value.is_number_integer() ? Json(-value.value.get<std::int64_t>())
                                                    : Json(-value.value.get<double>());
      return value;
    }
    if (c == '[') return list(depth);
    if (is_name(c)) return named(false, depth);
    return {};
  }

  Value list(int depth) {
    ++at_;
    Value result{Json::array(), true};
    while (at_ < text_.size()) {
      skip(true);
      if (peek() == ']') {
        ++at_;
        return result;
      }
      if (peek() == ',') {
        ++at_;
        continue;
      }
      const std::size_t before = at_;
      const PythonArgument item = argument("", depth + 1);
      if (at_ == before) return {};
      result.resolved = result.resolved && item.resolved;
      result.value.push_back(item.value);
    }
    return {};
  }

  Value number() {
    std::string digits;
    while (is_name(peek()) || peek() == '.' ||
           ((peek() == '-' || peek() == '+') && (digits.back() == 'e' || digits.back() == 'E'))) {
      if (peek() != '_') digits += peek();
      ++at_;
    }
    std::int64_t whole = 0;
    double real = 0;
    const char* const end = digits.data() + digits.size();
    if (const auto [stop, code] = std::from_chars(digits.data(), end, whole);
        code == std::errc{} && stop == end) {
      return {whole, true};
    }
    const auto [stop, code] = std::from_chars(digits.data(), end, real);
    return code == std::errc{} && stop == end ? Value{real, true} : Value{};
  }

  // Integers of a size that products of three stay exact in.
  static std::optional<std::int64_t> small(const Value& value) {
    constexpr std::int64_t kMost = std::int64_t{1} << 40U;
    if (!value.resolved || !value.value.is_number_integer()) return std::nullopt;
    const auto n = value.value.get<std::int64_t>();
    return n > -kMost && n < kMost ? std::optional(n) : std::nullopt;
  }

  Value product(int depth) {
    Value value = factor(depth);
    for (;;) {
      skip(depth > 0);
      const bool divides = peek() == '/' && peek(1) == '/';
      if (!(peek() == '*' && peek(1) != '*') && !divides) return value;
      at_ += divides ? 2 : 1;
      const auto a = small(value), b = small(factor(depth + 1));
      const bool exact =
          a && b && (!divides || *b != 0) &&
          (divides || *b == 0 || std::abs(*a) < (std::int64_t{1} << 62U) / std::abs(*b));
      value = exact ? Value{divides ? *a / *b : *a * *b, true} : Value{};
    }
  }

  Value sum(int depth) {
    if (depth > kDeepest) return {};
    Value value = product(depth);
    for (;;) {
      skip(depth > 0);
      const bool minus = peek() == '-';
      if (peek() != '+' && !minus) return value;
      ++at_;
      const auto a = small(value), b = small(product(depth + 1));
      value = a && b ? Value{minus ? *a - *b : *a + *b, true} : Value{};
    }
  }

  std::string_view text_;
  const std::string& name_;
  const Constants& constants_;
  std::size_t at_ = 0;
  std::vector<std::size_t> ends_;
  PythonText result_;
};

// Whether something else than an assignment may give the name a value: an argument of a function,
// a loop, "+=", "with ... as".
bool is_bound_otherwise(std::string_view text, const std::string& name) {
  for (std::size_t at = text.find(name); at != std::string_view::npos;
       at = text.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    const bool whole = (at == 0 || (!is_name(text[at - 1]) && text[at - 1] != '.')) &&
                       (end == text.size() || !is_name(text[end]));
    if (!whole) continue;
    const std::size_t line = at == 0 ? 0 : text.rfind('\n', at - 1) + 1;  // npos + 1: the first
    std::string_view before = text.substr(line, at - line);
    before.remove_prefix(std::min(before.find_first_not_of(" \t"), before.size()));
    std::string_view behind = text.substr(end, 3);
    behind.remove_prefix(std::min(behind.find_first_not_of(' '), behind.size()));
    const bool changes = behind.size() > 1 && behind[1] == '=' &&
                         std::string_view("+-*/|&%").find(behind[0]) != std::string_view::npos;
    if (changes || before.starts_with("def ") || before.starts_with("for ") ||
        before.starts_with("global ") || before.ends_with(" as ")) {
      return true;
    }
  }
  return false;
}

// Variables that are set once, to what the file itself says.
Constants constants_of(const PythonText& read, std::string_view text) {
  Constants constants;
  std::map<std::string, int> times;
  for (const PythonAssignment& assignment : read.assignments) {
    if (assignment.target.find('.') != std::string::npos) continue;
    ++times[assignment.target];
    const bool plain = assignment.value.resolved && !assignment.value.value.is_null();
    if (plain) constants[assignment.target] = assignment.value.value;
  }
  std::erase_if(constants, [&](const auto& constant) {
    return times[constant.first] > 1 || is_bound_otherwise(text, constant.first);
  });
  return constants;
}

// "m = cfg.model; m.x = 2" is "cfg.model.x = 2".
void spell_out_aliases(PythonText& read) {
  std::map<std::string, std::string, std::less<>> aliases;
  for (PythonAssignment& assignment : read.assignments) {
    std::string& target = assignment.target;
    const std::size_t dot = target.find('.');
    const auto alias = aliases.find(target.substr(0, dot));
    if (dot != std::string::npos && alias != aliases.end()) {
      target = alias->second + target.substr(dot);
    }
    if (dot != std::string::npos) continue;
    std::string meant = assignment.value.text;
    const bool is_path =
        !assignment.value.resolved && meant.find('.') != std::string::npos &&
        std::all_of(meant.begin(), meant.end(), [](char c) { return is_name(c) || c == '.'; });
    if (!is_path) {
      aliases.erase(target);
      continue;
    }
    const auto outer = aliases.find(meant.substr(0, meant.find('.')));
    if (outer != aliases.end()) meant = outer->second + meant.substr(meant.find('.'));
    aliases[target] = std::move(meant);
  }
}

}  // namespace

const PythonArgument* PythonCall::find(std::string_view name) const {
  const auto found = std::find_if(arguments.begin(), arguments.end(),
                                  [&](const PythonArgument& a) { return a.name == name; });
  return found == arguments.end() ? nullptr : &*found;
}

PythonText read_python(std::string_view text, const std::string& name) {
  PythonText read = PythonReader(text, name, Constants()).read();
  // Again until no other variable is known by those that are: "A = 2", "B = A * 4".
  constexpr int kMostReadings = 4;
  std::size_t known = 0;
  for (int i = 0; i < kMostReadings; ++i) {
    const Constants constants = constants_of(read, text);
    if (constants.size() == known) break;
    known = constants.size();
    read = PythonReader(text, name, constants).read();
  }
  spell_out_aliases(read);
  return read;
}

}  // namespace qplan
