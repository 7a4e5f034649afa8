// JSON with positions. nlohmann's reader tells neither lines of values nor tolerates remarks, which
// DeepSpeed's own reader (hjson) does.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "models/error.h"
#include "planner/frameworks/readers/formats.h"

namespace qplan {
namespace {

class JsonTextReader {
 public:
  JsonTextReader(std::string_view text, const std::string& name, int first_line)
      : text_(text), name_(name), line_(first_line) {}

  FormatText read() {
    at_ = byte_order_mark(text_);
    if (at_ > 0) {
      tolerate("json_byte_order_mark",
               "the file begins with a byte-order mark, which Hugging Face Trainer and accelerate "
               "refuse",
               {0, at_});
    }
    skip();
    value("", 0);
    skip();
    if (at_ < text_.size()) fail("something follows the end of the value");
    for (Setting& setting : all_) result_.settings.add(std::move(setting));
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail(std::string_view sentence) {
    throw Error(fmt::format("{}:{}: this is not JSON: {}", name_, line(), sentence));
  }
  // Offsets only grow, so the line is counted from where it was asked last.
  int line() {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n'));
    counted_ = at_;
    return line_;
  }
  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void tolerate(std::string_view rule, std::string_view message, Span span) {
    if (std::any_of(result_.findings.begin(), result_.findings.end(),
                    [&](const Finding& f) { return f.rule == rule; })) {
      // Said once; but all of them are taken out.
      for (Finding& finding : result_.findings) {
        if (finding.rule == rule) finding.fix.push_back({name_, span.begin, span.end, ""});
      }
      return;
    }
    // A comma stands where it is found, and that may be lines above what is read now.
    const auto below = std::count(text_.begin() + static_cast<std::ptrdiff_t>(span.begin),
                                  text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
    const int line_of_span = at_ > span.begin ? line() - static_cast<int>(below) : line();
    result_.findings.push_back(
        {Severity::warning,
         std::string(rule),
         {name_, line_of_span},
         std::string(message),
         "take them out: strict JSON is read everywhere",
         "DeepSpeed edaa7221, deepspeed/runtime/config.py:699 (reads by hjson)",
         {{name_, span.begin, span.end, ""}}});
  }

  // With the blanks before it; where nothing else stands on its line, with the line.
  [[nodiscard]] Span whole_remark(std::size_t from, std::size_t end) const {
    std::size_t begin = from;
    while (begin > 0 && (text_[begin - 1] == ' ' || text_[begin - 1] == '\t')) --begin;
    if (end > from && text_[end - 1] == '\r') --end;
    const bool alone = begin == 0 || text_[begin - 1] == '\n';
    const std::size_t next = std::min(text_.find_first_not_of(" \t\r", end), text_.size());
    const bool to_end = next == text_.size() || text_[next] == '\n';
    if (alone && to_end) return {begin, std::min(next + 1, text_.size())};
    return {alone || !to_end ? from : begin, end};
  }

  void skip() {
    for (;;) {
      while (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') ++at_;
      const std::string_view rest = text_.substr(at_);
      const bool block = rest.starts_with("/*");
      if (peek() != '#' && !rest.starts_with("//") && !block) return;
      const std::size_t from = at_, close = block ? text_.find("*/", at_ + 2) : 0;
      if (close == std::string_view::npos) fail("a remark that begins with /* has no end");
      const std::size_t end = block ? close + 2 : std::min(text_.find('\n', at_), text_.size());
      tolerate(
          "json_remark",
          "remarks are read by DeepSpeed's own reader; Hugging Face Trainer and accelerate read "
          "strict JSON and fail",
          whole_remark(from, end));
      at_ = end;
    }
  }

  std::string string() {
    ++at_;
    std::string result;
    while (peek() != '"') {
      if (at_ >= text_.size()) fail("the text ends inside a string; is the file cut off?");
      if (peek() == '\n') fail("a string does not end on its line");
      if (peek() == '\\') {
        ++at_;
        const char c = peek();
        const std::string_view from = "nrtbf", to = "\n\r\t\b\f";
        const std::size_t escape = from.find(c);
        result += escape == std::string_view::npos ? c : to[escape];
      } else {
        result += peek();
      }
      ++at_;
    }
    ++at_;
    return result;
  }

  void add(const std::string& key, Json value, std::size_t from) {
    if (++count_ > kMostValues) fail(kTooManyValues);
    const bool named = key_.begin > 0 && key_.begin < from;  // else of an item in a list
    all_.push_back({key,
                    std::move(value),
                    {name_, line()},
                    {named ? key_.begin - 1 : from, at_},
                    {from, at_},
                    true,
                    named ? key_ : Span{},
                    Syntax::json});
  }

  void value(const std::string& path, int depth) {
    if (depth > kDeepestValue) fail(fmt::format("values are nested deeper than {}", kDeepestValue));
    if (at_ >= text_.size()) fail("the text ends in the middle of a value; is the file cut off?");
    const std::size_t from = at_;
    if (peek() == '{') return object(path, depth);
    if (peek() == '[') return array(path, depth);
    add(path, scalar(), from);
  }

  Json scalar() {
    if (peek() == '"') return string();
    const std::size_t from = at_;
    constexpr std::string_view kEnds = " \t\r\n,]}#/";
    while (at_ < text_.size() && kEnds.find(peek()) == std::string_view::npos) ++at_;
    const std::string_view word = text_.substr(from, at_ - from);
    if (word == "true" || word == "false") return word == "true";
    if (word == "null") return nullptr;
    double number = 0;
    std::int64_t whole = 0;
    const char* const end = word.data() + word.size();
    if (const auto [stop, code] = std::from_chars(word.data(), end, whole);
        code == std::errc{} && stop == end && !word.empty()) {
      return whole;
    }
    const auto [stop, code] = std::from_chars(word.data(), end, number);
    if (code == std::errc::result_out_of_range && stop == end) {
      fail(fmt::format("{} is out of the range of numbers", shown(word)));
    }
    if (code != std::errc{} || stop != end || word.empty()) {
      fail(fmt::format("'{}' is no value; words stand in quotes", shown(word)));
    }
    return number;
  }

  // A member of an object, and where what stands in it lies among the settings.
  struct Member {
    Setting block;  // its key and places, with an empty object for its value
    std::size_t begin, end;
    bool holds;  // others
  };

  void object(const std::string& path, int depth) {
    ++at_;
    skip();
    const std::size_t begin = all_.size();
    std::vector<Member> members;
    std::map<std::string, std::size_t> last;
    for (bool first = true; peek() != '}'; first = false) {
      if (!first && comma('}')) break;
      if (at_ >= text_.size()) fail("the text ends inside an object; is the file cut off?");
      if (peek() != '"') fail("a key must stand in quotes");
      const std::size_t key_at = at_;
      const int key_line = line();
      const std::string key = string();
      const Span spelled{key_at + 1, at_ - 1};
      skip();
      if (peek() != ':') fail(fmt::format("a ':' must follow the key \"{}\"", shown(key)));
      ++at_;
      skip();
      key_ = spelled;
      const std::string child = path.empty() ? key : fmt::format("{}.{}", path, key);
      const bool section = peek() == '{', holds = section || peek() == '[';
      const std::size_t from = at_, before = all_.size();
      value(child, depth + 1);
      key_ = spelled;
      if (section && all_.size() == before) add(child, Json::object(), from);
      last[key] = members.size();
      members.push_back({{child,
                          Json::object(),
                          {name_, key_line},
                          {key_at, at_},
                          {from, at_},
                          true,
                          spelled,
                          Syntax::json},
                         before,
                         all_.size(),
                         holds});
      skip();
    }
    ++at_;
    if (last.size() < members.size()) drop_overwritten(begin, members, last);
  }

  // Of two blocks of one name the last counts, and nothing of the first: what is left of either is
  // an empty one, for whoever asks what stands twice.
  void drop_overwritten(std::size_t begin, std::vector<Member>& members,
                        const std::map<std::string, std::size_t>& last) {
    std::set<std::string> twice;
    std::vector<bool> stands(members.size());
    for (const auto& [key, at] : last) stands[at] = true;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (!stands[i]) twice.insert(members[i].block.key);
    }
    std::vector<Setting> rest;
    for (std::size_t i = 0; i < members.size(); ++i) {
      Member& member = members[i];
      const bool marked = member.holds && twice.contains(member.block.key);
      if (marked) rest.push_back(std::move(member.block));
      if (marked && !stands[i]) continue;
      for (std::size_t s = member.begin; s < member.end; ++s) rest.push_back(std::move(all_[s]));
    }
    all_.resize(begin);
    for (Setting& setting : rest) all_.push_back(std::move(setting));
  }

  void array(const std::string& path, int depth) {
    const std::size_t from = at_++;
    Json list = Json::array();
    skip();
    for (bool first = true; peek() != ']'; first = false) {
      if (!first && comma(']')) break;
      if (++count_ > kMostValues) fail(kTooManyValues);
      const bool nested = peek() == '{' || peek() == '[';
      if (nested) value(fmt::format("{}.{}", path, list.size()), depth + 1);
      list.push_back(nested ? Json(nullptr) : scalar());
      skip();
    }
    ++at_;
    add(path, std::move(list), from);
  }

  // Past a comma between members; true: it was the last, and the container ends.
  bool comma(char close) {
    if (at_ >= text_.size()) fail("the text ends inside a container; is the file cut off?");
    if (peek() != ',') fail("a ',' or the container's end must follow a value");
    const std::size_t from = at_++;
    skip();
    if (peek() != close) return false;
    tolerate("json_trailing_comma", "a comma before a closing bracket is no JSON",
             {from, from + 1});
    return true;
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0, counted_ = 0, count_ = 0;
  Span key_{};  // of the value that is read
  int line_;
  std::vector<Setting> all_;
  FormatText result_;
};

}  // namespace

int line_of(std::string_view text, std::size_t offset) {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(offset, text.size()));
  return 1 + static_cast<int>(std::count(text.begin(), end, '\n'));
}

FormatText read_json_settings(std::string_view text, const std::string& name, int first_line) {
  return JsonTextReader(text, name, first_line).read();
}

}  // namespace qplan
