// TOML 1.0 as settings with their places, as Python's tomllib reads it. A reader of our own: every
// name and value is wanted by its bytes, for corrections, and a table or a key that stands twice is
// told beside all else that is wrong, where a parser would stop.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/ascii.h"
#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/readers/formats.h"

namespace qplan {
namespace {

constexpr std::string_view kTomlBlanks = " \t";

bool is_bare(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
}

bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// "1_000" without its underscores, each of which stands between two digits; nothing: one does not.
std::optional<std::string> without_separators(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      plain += text[i];
      continue;
    }
    const bool between = i > 0 && i + 1 < text.size() && is_bare(text[i - 1]) &&
                         is_bare(text[i + 1]) && text[i - 1] != '_' && text[i + 1] != '_';
    if (!between) return std::nullopt;
  }
  return plain;
}

std::optional<std::int64_t> toml_whole(std::string text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.erase(0, 1);
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0o") || text.starts_with("0b")) {
    base = text[1] == 'x' ? 16 : text[1] == 'o' ? 8 : 2;
    text.erase(0, 2);
  } else if (text.size() > 1 && text.front() == '0') {
    return std::nullopt;  // "010"
  }
  std::int64_t whole = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, whole, base);
  if (text.empty() || !is_hex(text.front()) || code != std::errc{} || stop != end) {
    return std::nullopt;
  }
  return negative ? -whole : whole;
}

std::optional<double> toml_fraction(std::string text) {
  if (text.starts_with('+')) text.erase(0, 1);
  const std::size_t first = text.starts_with('-') ? 1 : 0;
  const std::size_t point = text.find('.');
  const bool bare_point =
      point != std::string::npos && (point == first || point + 1 >= text.size() ||
                                     !is_digit(text[point - 1]) || !is_digit(text[point + 1]));
  if (bare_point || text.size() <= first || !is_digit(text[first])) return std::nullopt;
  if (text[first] == '0' && text.size() > first + 1 && is_digit(text[first + 1])) {
    return std::nullopt;
  }
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, number);
  if (stop != end || (code != std::errc{} && code != std::errc::result_out_of_range)) {
    return std::nullopt;
  }
  return number;
}

// "2026-01-31", "07:32:00": dates and times, which no setting of a plan is.
bool is_moment(std::string_view text) {
  const auto digits = [&](std::size_t count) {
    return text.size() > count && std::all_of(text.begin(), text.begin() + static_cast<long>(count),
                                              [](char c) { return is_digit(c); });
  };
  return (digits(4) && text[4] == '-') || (digits(2) && text[2] == ':');
}

std::string utf8_of(unsigned long code) {
  std::string text;
  const auto byte = [&text](unsigned long bits) { text += static_cast<char>(bits); };
  if (code < 0x80) {
    byte(code);
  } else if (code < 0x800) {
    byte(0xC0 | (code >> 6));
    byte(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    byte(0xE0 | (code >> 12));
    byte(0x80 | ((code >> 6) & 0x3F));
    byte(0x80 | (code & 0x3F));
  } else {
    byte(0xF0 | (code >> 18));
    byte(0x80 | ((code >> 12) & 0x3F));
    byte(0x80 | ((code >> 6) & 0x3F));
    byte(0x80 | (code & 0x3F));
  }
  return text;
}

class TomlReader {
 public:
  TomlReader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  FormatText read() {
    if (byte_order_mark(text_) > 0) fail("a byte order mark, at which tomllib stops");
    for (skip_lines(); !ends(); skip_lines()) {
      if (peek() == '[') {
        header();
      } else {
        pair(table_, 0);
      }
      end_line();
    }
    return std::move(result_);
  }

 private:
  // A key's parts, and where its last one stands.
  struct Key {
    std::vector<std::string> parts;
    Span whole, last;
  };

  [[noreturn]] void fail(std::string_view sentence) const {
    throw Error(fmt::format("{}:{}: this is not TOML: {}", name_,
                            line_of(text_, std::min(at_, text_.size())), sentence));
  }

  [[nodiscard]] bool ends() const { return at_ >= text_.size(); }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  [[nodiscard]] bool begins(std::string_view word) const {
    return text_.substr(at_).starts_with(word);
  }

  void skip_blanks() {
    while (!ends() && kTomlBlanks.find(peek()) != std::string_view::npos) ++at_;
  }

  void skip_remark() {
    if (peek() == '#') at_ = std::min(text_.find('\n', at_), text_.size());
  }

  // Blanks, remarks and ends of lines.
  void skip_lines() {
    for (;;) {
      skip_blanks();
      skip_remark();
      if (begins("\r\n")) {
        at_ += 2;
      } else if (peek() == '\n') {
        ++at_;
      } else {
        return;
      }
    }
  }

  void end_line() {
    skip_blanks();
    skip_remark();
    if (!ends() && peek() != '\n' && !begins("\r\n")) {
      fail(
          fmt::format("{} behind the end of a statement",
                      shown(std::string(trimmed(text_.substr(at_, text_.find('\n', at_) - at_))))));
    }
  }

  void count() {
    if (++count_ > kMostValues) fail(kTooManyValues);
  }

  Key key() {
    Key key;
    key.whole.begin = at_;
    for (;;) {
      skip_blanks();
      const bool quoted = peek() == '"' || peek() == '\'';
      const std::size_t begin = at_;
      if (quoted) {
        if (begins("\"\"\"") || begins("'''")) fail("a name in three quotes");
        key.parts.push_back(quoted_text());
        key.last = {begin + 1, at_ - 1};
      } else {
        while (is_bare(peek())) ++at_;
        if (at_ == begin) fail("a name is missing");
        key.parts.emplace_back(text_.substr(begin, at_ - begin));
        key.last = {begin, at_};
      }
      key.whole.end = at_;
      if (key.parts.size() > kDeepestValue) fail("names of too many parts");
      skip_blanks();
      if (peek() != '.') return key;
      ++at_;
    }
  }

  static std::string joined(const std::string& table, const std::vector<std::string>& parts) {
    std::string path = table;
    for (const std::string& part : parts) path += (path.empty() ? "" : ".") + part;
    return path;
  }

  // "[a.b]", "[[a.b]]": each of the latter is a table of its own.
  void header() {
    const std::size_t begin = at_;
    const bool list = begins("[[");
    at_ += list ? 2 : 1;
    const Key name = key();
    const std::string_view close = list ? "]]" : "]";
    if (!begins(close)) fail(fmt::format("'{}' is missing behind a table's name", close));
    at_ += close.size();
    table_ = placed(name.parts);
    if (list) {
      table_ += fmt::format(".{}", lists_[table_]++);
    } else {
      refuse_twice(table_, begin, "table");
    }
    add(table_, Json::object(), name, {begin, at_}, {});
  }

  // Below a table of a list its last one is meant: "[source.env]" behind "[[source]]".
  [[nodiscard]] std::string placed(const std::vector<std::string>& parts) const {
    std::string path;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      path = joined(path, {parts[i]});
      const auto found = lists_.find(path);
      if (found != lists_.end() && i + 1 < parts.size()) {
        path += fmt::format(".{}", found->second - 1);
      }
    }
    return path;
  }

  void pair(const std::string& table, int depth) {
    const Key name = key();
    if (peek() != '=') fail(fmt::format("'=' is missing behind {}", shown(name.parts.back())));
    ++at_;
    skip_blanks();
    const std::string path = joined(table, name.parts);
    refuse_twice(path, name.whole.begin, "key");
    const std::size_t begin = at_;
    Json read = value(path, depth);
    if (!read.is_null()) add(path, std::move(read), name, {name.whole.begin, at_}, {begin, at_});
  }

  // tomllib stops; what stands last is judged.
  void refuse_twice(const std::string& path, std::size_t begin, std::string_view what) {
    if (said_.insert(path).second) return;
    result_.findings.push_back({Severity::error,
                                "said_twice",
                                {name_, line_of(text_, begin)},
                                fmt::format("{} {} stands twice, and tomllib stops", what, path),
                                "keep one",
                                "Python 3, Lib/tomllib/_parser.py (Cannot overwrite a value)",
                                {}});
  }

  void add(const std::string& path, Json value, const Key& name, Span whole, Span text) {
    count();
    result_.settings.add({path,
                          std::move(value),
                          {name_, line_of(text_, name.whole.begin)},
                          whole,
                          text,
                          true,
                          name.last,
                          Syntax::toml});
  }

  // Null: a table, whose keys were added.
  Json value(const std::string& path, int depth) {
    if (depth > kDeepestValue) fail(fmt::format("values are nested deeper than {}", kDeepestValue));
    switch (peek()) {
      case '"':
      case '\'':
        return quoted_text();
      case '[':
        return list(path, depth);
      case '{':
        inline_table(path, depth);
        return nullptr;
      default:
        return plain();
    }
  }

  Json list(const std::string& path, int depth) {
    Json items = Json::array();
    ++at_;
    for (skip_lines(); peek() != ']'; skip_lines()) {
      if (ends()) fail("a list is not closed");
      count();
      items.push_back(value(fmt::format("{}.{}", path, items.size()), depth + 1));
      skip_lines();
      if (peek() == ',') {
        ++at_;
      } else if (peek() != ']') {
        fail("a comma is missing in a list");
      }
    }
    ++at_;
    return items;
  }

  void inline_table(const std::string& path, int depth) {
    ++at_;
    skip_blanks();
    while (peek() != '}') {
      pair(path, depth + 1);
      skip_blanks();
      if (peek() == '}') break;
      if (peek() != ',') fail("a table in braces is not closed");
      ++at_;
      skip_blanks();
      if (peek() == '}') fail("a comma before the end of a table in braces");
    }
    ++at_;
  }

  // A number, true, false, or a date.
  Json plain() {
    const std::size_t begin = at_;
    while (!ends() && std::string_view(" \t\r\n,]}#").find(peek()) == std::string_view::npos) ++at_;
    const std::string_view word = text_.substr(begin, at_ - begin);
    if (word == "true") return true;
    if (word == "false") return false;
    if (is_moment(word)) {
      // "1979-05-27 07:32:00"
      if (peek() == ' ' && is_digit(peek(1)) && is_digit(peek(2)) && peek(3) == ':') {
        ++at_;
        plain();
      }
      return std::string(text_.substr(begin, at_ - begin));
    }
    const std::string_view bare =
        word.starts_with('+') || word.starts_with('-') ? word.substr(1) : word;
    if (bare == "inf" || bare == "nan") return std::string(word);  // JSON has neither
    if (const auto digits = without_separators(word)) {
      if (const auto whole = toml_whole(*digits)) return *whole;
      if (const auto fraction = toml_fraction(*digits)) return *fraction;
    }
    at_ = begin;
    if (word.empty()) fail("a value is missing");
    fail(fmt::format("{} is no value: text stands in quotes, and only true and false do not",
                     shown(std::string(word))));
  }

  std::string quoted_text() {
    const char quote = peek();
    const std::string three(3, quote);
    const bool many = begins(three);
    at_ += many ? 3 : 1;
    if (many && begins("\r\n")) ++at_;
    if (many && peek() == '\n') ++at_;
    std::string text;
    for (;;) {
      if (ends()) fail("a quote is not closed");
      if (many ? begins(three) : peek() == quote) break;
      if (!many && peek() == '\n') fail("a quote is not closed in its line");
      if (peek() == '\\' && quote == '"') {
        text += escaped(many);
      } else {
        text += text_[at_++];
      }
    }
    at_ += many ? 3 : 1;
    // Up to two quotes may stand before the three.
    for (int more = 0; many && more < 2 && peek() == quote; ++more, ++at_) text += quote;
    return text;
  }

  std::string escaped(bool many) {
    constexpr std::array<std::pair<char, char>, 7> kEscapes{{{'b', '\b'},
                                                             {'t', '\t'},
                                                             {'n', '\n'},
                                                             {'f', '\f'},
                                                             {'r', '\r'},
                                                             {'"', '"'},
                                                             {'\\', '\\'}}};
    ++at_;
    const char letter = peek();
    for (const auto& [written, meant] : kEscapes) {
      if (letter != written) continue;
      ++at_;
      return {meant};
    }
    if (letter == 'u' || letter == 'U') {
      const std::size_t digits = letter == 'u' ? 4 : 8;
      const std::string_view hex = text_.substr(std::min(at_ + 1, text_.size()), digits);
      unsigned long code = 0;
      const auto [stop, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
      if (hex.size() < digits || stop != hex.data() + hex.size() || error != std::errc{}) {
        fail("a backslash and 'u' want digits behind them");
      }
      at_ += 1 + digits;
      return utf8_of(code);
    }
    // A backslash at the end of a line takes the break and what indents the next.
    const std::size_t next = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
    if (many && text_.substr(at_, next - at_).find('\n') != std::string_view::npos) {
      at_ = next;
      return "";
    }
    fail("a backslash that escapes nothing; paths stand in single quotes");
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::size_t count_ = 0;
  std::string table_;                 // that the last header named
  std::map<std::string, int> lists_;  // tables of a list so far
  std::set<std::string> said_;
  FormatText result_;
};

}  // namespace

FormatText read_toml_settings(std::string_view text, const std::string& name) {
  return TomlReader(text, name).read();
}

}  // namespace qplan
