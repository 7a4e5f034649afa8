// A strict reader of the part of YAML that launchers' files use, written for its positions: a
// library's would be one more dependency on four distributions, for files of thirty lines.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "models/error.h"
#include "planner/frameworks/formats.h"

namespace qplan {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r' || text.back() == '\t')) {
    text.remove_suffix(1);
  }
  return text;
}

// Up to a remark, which begins at " #" outside quotes.
std::string_view without_remark(std::string_view text) {
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '#' && (i == 0 || text[i - 1] == ' ' || text[i - 1] == '\t')) {
      return text.substr(0, i);
    }
  }
  return text;
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  FormatText read() {
    for (std::size_t from = 0; from < text_.size();) {
      const std::size_t end = std::min(text_.find('\n', from), text_.size());
      ++number_;
      line(from, text_.substr(from, end - from));
      from = end + 1;
    }
    return std::move(result_);
  }

 private:
  struct Level {
    std::size_t indent;
    std::string path;
  };

  [[noreturn]] void fail(std::string_view sentence) const {
    throw Error(fmt::format("{}:{}: {}", name_, number_, sentence));
  }

  void line(std::size_t from, std::string_view raw) {
    const std::string_view content = without_remark(raw);
    const std::string_view text = trimmed(content);
    if (text.empty() || text == "---" || text == "...") return;
    const std::size_t indent = content.find_first_not_of(' ');
    if (content[indent] == '\t') fail("YAML indents by spaces, not by tabs");
    const std::size_t at = from + indent;
    if (text.starts_with("- ") || text == "-") return item(indent, text.substr(1), at);
    const std::size_t colon = colon_of(text);
    if (colon == std::string_view::npos) {
      fail(fmt::format("'{}' is no \"key: value\"", shown(text)));
    }
    while (!levels_.empty() && levels_.back().indent >= indent) levels_.pop_back();
    const std::string key = unquoted(trimmed(text.substr(0, colon)));
    const std::string path = levels_.empty() ? key : levels_.back().path + "." + key;
    const std::string_view value = trimmed(text.substr(colon + 1));
    levels_.push_back({indent, path});
    if (levels_.size() > 64) fail("values are nested deeper than 64");
    if (value.empty()) return;
    add(path, scalar(value), at, text.size(), value);
  }

  static std::size_t colon_of(std::string_view text) {
    char quote = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (quote != 0) {
        if (text[i] == quote) quote = 0;
      } else if (text[i] == '"' || text[i] == '\'') {
        quote = text[i];
      } else if (text[i] == ':' && (i + 1 == text.size() || text[i + 1] == ' ')) {
        return i;
      }
    }
    return std::string_view::npos;
  }

  // "- value" belongs to the nearest key that is indented no deeper.
  void item(std::size_t indent, std::string_view text, std::size_t at) {
    while (!levels_.empty() && levels_.back().indent > indent) levels_.pop_back();
    if (levels_.empty()) fail("a list stands where keys are expected");
    const std::string_view value = trimmed(text);
    if (value.empty() || colon_of(value) != std::string_view::npos) {
      fail("lists of mappings are not read");
    }
    const std::string& path = levels_.back().path;
    Json list = Json::array();
    if (const Setting* const before = result_.settings.find(path)) {
      list = before->value.is_array() ? before->value : Json::array({before->value});
    }
    list.push_back(scalar(value));
    add(path, list, at, text.size() + 1, value);
  }

  void add(const std::string& path, Json value, std::size_t at, std::size_t size,
           std::string_view spelled) {
    const auto begin = static_cast<std::size_t>(spelled.data() - text_.data());
    result_.settings.add({path,
                          std::move(value),
                          {name_, number_},
                          {at, at + size},
                          {begin, begin + spelled.size()},
                          true});
  }

  std::string unquoted(std::string_view text) const {
    const bool quoted = text.size() >= 2 && (text.front() == '"' || text.front() == '\'');
    if (!quoted) return std::string(text);
    if (text.back() != text.front()) fail("a quote is not closed on its line");
    return std::string(text.substr(1, text.size() - 2));
  }

  Json scalar(std::string_view text) const {
    const char first = text.front();
    if (first == '"' || first == '\'') return unquoted(text);
    if (text == "{}") return Json::object();
    if (std::string_view("&*!{|>%@`").find(first) != std::string_view::npos) {
      fail(fmt::format("'{}' is a part of YAML that is not read; write plain keys and values",
                       shown(text)));
    }
    if (first == '[') return sequence(text);
    if (text == "true" || text == "True" || text == "yes") return true;
    if (text == "false" || text == "False" || text == "no") return false;
    if (text == "null" || text == "~") return nullptr;
    std::int64_t whole = 0;
    double number = 0;
    const char* const end = text.data() + text.size();
    if (const auto [stop, code] = std::from_chars(text.data(), end, whole);
        code == std::errc{} && stop == end) {
      return whole;
    }
    if (const auto [stop, code] = std::from_chars(text.data(), end, number);
        code == std::errc{} && stop == end) {
      return number;
    }
    return std::string(text);
  }

  Json sequence(std::string_view text) const {
    if (text.back() != ']') fail("a list in brackets must end on its line");
    Json list = Json::array();
    std::string_view rest = trimmed(text.substr(1, text.size() - 2));
    while (!rest.empty()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      const std::string_view item = trimmed(rest.substr(0, comma));
      if (item.empty() || item.front() == '[') fail("lists of lists are not read");
      list.push_back(scalar(item));
      rest = comma == rest.size() ? std::string_view() : trimmed(rest.substr(comma + 1));
    }
    return list;
  }

  std::string_view text_;
  const std::string& name_;
  int number_ = 0;
  std::vector<Level> levels_;
  FormatText result_;
};

}  // namespace

FormatText read_yaml_settings(std::string_view text, const std::string& name) {
  return Reader(text, name).read();
}

}  // namespace qplan
