#include "planner/frameworks/text_places.h"

#include <algorithm>
#include <sstream>
#include <vector>

namespace qplan {

bool is_empty(Span span) {
  return span.end <= span.begin;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(kBlanks) == std::string_view::npos;
}

std::string_view cut(const std::string& text, Span span) {
  const std::size_t end = std::min(span.end, text.size());
  return std::string_view(text).substr(std::min(span.begin, end), end - std::min(span.begin, end));
}

Span line_at(const std::string& text, std::size_t at) {
  const std::size_t before = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  std::size_t end = std::min(text.find('\n', at), text.size());
  if (end > begin && end > at && text[end - 1] == '\r') --end;
  return {begin, end};
}

std::size_t next_line(const std::string& text, std::size_t at) {
  const std::size_t end = text.find('\n', at);
  return end == std::string::npos ? text.size() : end + 1;
}

std::string line_break(const std::string& text, std::size_t at) {
  const std::size_t end = next_line(text, at);
  return end >= 2 && text[end - 1] == '\n' && text[end - 2] == '\r' ? "\r\n" : "\n";
}

bool ends_in_quotes(const Setting& setting) {
  const bool has_value = !is_empty(setting.text);
  return has_value && (setting.value.is_array() ||
                       setting.text.begin != setting.whole.begin + setting.key.size() + 1);
}

bool in_one_piece(const std::string& text, const Setting& s) {
  if (is_empty(s.whole)) return false;
  if (s.value.is_boolean() && s.whole.end == s.name.end) return true;
  if (s.text.begin < s.name.end || is_empty(s.text) || s.text.end > text.size()) return false;
  const auto between = cut(text, {s.name.end, s.text.begin});
  return between.find_first_not_of(" \t\r\n\\=\"'") == std::string_view::npos &&
         cut(text, s.text).find('$') == std::string_view::npos;
}

bool spells_value(const std::string& text, const Setting& s) {
  std::string raw(cut(text, s.text));
  if (!s.value.is_array()) return raw == text_of(s.value);
  std::replace_if(
      raw.begin(), raw.end(), [](char c) { return c == '\n' || c == '\\'; }, ' ');
  std::istringstream in(raw);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words == list_of(s.value);
}

Span with_quotes(const std::string& text, const Setting& s) {
  Span span = s.whole;
  const auto quote_at = [&](std::size_t at) {
    return at < text.size() && (text[at] == '"' || text[at] == '\'') ? text[at] : '\0';
  };
  const bool value = s.text.begin > s.name.end;
  if (value && quote_at(s.text.begin - 1) != '\0') {
    if (quote_at(s.text.end) == text[s.text.begin - 1]) ++span.end;
  } else if (!value && span.begin > 0 && quote_at(span.begin - 1) != '\0' &&
             quote_at(span.end) == text[span.begin - 1]) {
    const char before = span.begin > 1 ? text[span.begin - 2] : '\n';
    if (before != '=') span = {span.begin - 1, span.end + 1};
  }
  return span;
}

bool begins_line(const std::string& text, const Setting& s) {
  const std::string_view before = cut(text, {line_at(text, s.whole.begin).begin, s.whole.begin});
  return is_blank(before);
}

bool is_special_yaml(std::string_view raw) {
  return !raw.empty() && std::string_view("&*!|>").find(raw.front()) != std::string_view::npos;
}

Span with_comma(const std::string& text, Span span) {
  const auto blank = [&](std::size_t at) {
    return kBlanks.find(text[at]) != std::string_view::npos || text[at] == '\n';
  };
  std::size_t after = span.end;
  while (after < text.size() && blank(after)) ++after;
  if (after < text.size() && text[after] == ',') {
    span.end = after + 1;
    std::size_t next = span.end, before = span.begin;
    while (next < text.size() && kBlanks.find(text[next]) != std::string_view::npos) ++next;
    while (before > 0 && kBlanks.find(text[before - 1]) != std::string_view::npos) --before;
    // Behind another of its line the line's end stays.
    const bool last = next < text.size() && text[next] == '\n';
    if (last && before > 0 && text[before - 1] != '\n') return {before, next};
    if (last) return {before, next + 1};  // the line is its own
    while (span.end < text.size() && blank(span.end)) ++span.end;
    return span;
  }
  while (span.begin > 0 && blank(span.begin - 1)) --span.begin;
  if (span.begin > 0 && text[span.begin - 1] == ',') --span.begin;
  return span;
}

Span word_to_remove(const std::string& text, const Setting& s) {
  Span span = with_quotes(text, s);
  const Span line{line_at(text, span.begin).begin, line_at(text, span.end).end};
  const auto before = cut(text, {line.begin, span.begin}), after = cut(text, {span.end, line.end});
  const auto blank = [&](std::size_t at) { return kBlanks.find(text[at]) != std::string::npos; };
  if (!is_blank(before)) {
    const bool gap = blank(span.begin - 1);
    while (gap && span.begin > line.begin && blank(span.begin - 1)) --span.begin;
    while (!gap && span.end < line.end && blank(span.end)) ++span.end;
    return span;
  }
  const std::size_t last = after.find_last_not_of(kBlanks);
  const bool continues = last != std::string_view::npos && after[last] == '\\';
  if (continues && is_blank(after.substr(0, last))) return {line.begin, next_line(text, span.end)};
  if (!is_blank(after)) {
    while (span.end < line.end && blank(span.end)) ++span.end;
    return span;
  }
  // The last line of a command: the backslash before it goes with it.
  if (line.begin > 0) {
    const Span above = line_at(text, line.begin - 1);
    std::size_t end = above.end;
    if (end > above.begin && text[end - 1] == '\r') --end;
    if (end > above.begin && text[end - 1] == '\\') {
      --end;
      while (end > above.begin && blank(end - 1)) --end;
      return {end, line.end};
    }
  }
  return {line.begin, next_line(text, span.end)};
}

Span yaml_to_remove(const std::string& text, const Setting& s) {
  if (!begins_line(text, s)) return with_comma(text, s.whole);
  const Span line{line_at(text, s.whole.begin).begin, line_at(text, s.whole.end).end};
  const std::string_view after = cut(text, {s.whole.end, line.end});
  if (is_blank(after)) return {line.begin, next_line(text, s.whole.end)};
  return {s.whole.begin, s.whole.end + std::min(after.find_first_not_of(kBlanks), after.size())};
}

}  // namespace qplan
