#include "planner/frameworks/readers/remarks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "models/ascii.h"
#include "planner/frameworks/option.h"
#include "planner/frameworks/readers/python_syntax.h"

namespace qplan {
namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

struct Remark {
  int line = 1;
  bool trails = false;    // something else stands before it on its line
  std::string_view text;  // up to the end of the line
};

// Of a text in which a string begins and ends with the same quotes.
class Remarks {
 public:
  Remarks(std::string_view text, FileKind kind) : text_(text), kind_(kind) {}

  std::vector<Remark> find() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\n') {
        ++line_;
        line_start_ = ++at_;
      } else if (c == '"' || (c == '\'' && kind_ != FileKind::json)) {
        string(c);
      } else if (begins_remark()) {
        const std::size_t end = std::min(text_.find('\n', at_), text_.size());
        const std::string_view before = text_.substr(line_start_, at_ - line_start_);
        found_.push_back({line_, before.find_first_not_of(" \t") != std::string_view::npos,
                          text_.substr(at_, end - at_)});
        at_ = end;
      } else {
        ++at_;
      }
    }
    return std::move(found_);
  }

 private:
  [[nodiscard]] bool begins_remark() const {
    if (kind_ == FileKind::json) {
      return text_[at_] == '#' || text_.substr(at_).starts_with("//");
    }
    if (text_[at_] != '#') return false;
    // In YAML "a#b" is a word.
    return kind_ != FileKind::yaml || at_ == line_start_ || is_blank(text_[at_ - 1]);
  }

  void string(char quote) {
    const bool in_yaml = kind_ == FileKind::yaml;
    // There an apostrophe within a word is a letter.
    if (in_yaml && at_ > line_start_ && is_name(text_[at_ - 1])) {
      ++at_;
      return;
    }
    const std::string three(3, quote);
    const bool triple = kind_ == FileKind::python && text_.substr(at_).starts_with(three);
    at_ += triple ? 3 : 1;
    while (at_ < text_.size()) {
      if (text_[at_] == '\n') {
        if (!triple) return;  // not closed: what follows is read again
        ++line_;
        line_start_ = at_ + 1;
      }
      if (text_[at_] == '\\') {
        ++at_;
      } else if (triple ? text_.substr(at_).starts_with(three) : text_[at_] == quote) {
        at_ += triple ? 3 : 1;
        return;
      }
      ++at_;
    }
  }

  std::string_view text_;
  FileKind kind_;
  std::size_t at_ = 0, line_start_ = 0;
  int line_ = 1;
  std::vector<Remark> found_;
};

// The last names of accelerate's keys, and Megatron's options as a file spells them.
const std::set<std::string, std::less<>>& keys_of_yaml() {
  static const auto* const keys = [] {
    auto* all = new std::set<std::string, std::less<>>;
    for (const std::string& name : known_options("accelerate").names()) {
      all->insert(name.substr(name.rfind('.') + 1));  // npos + 1: the whole of it
    }
    for (std::string name : known_options("megatron").names()) {
      if (name.starts_with("--")) name.erase(0, 2);
      std::replace(name.begin(), name.end(), '-', '_');
      // A word of a sentence, as "seed:" and "load:", is no sign.
      if (name.find('_') != std::string::npos) all->insert(name);
    }
    return all;
  }();
  return *keys;
}

// "name: value" of keys that exist.
std::vector<std::string> keys_in_yaml(std::string_view remark) {
  std::vector<std::string> keys;
  for (std::size_t colon = 0; (colon = remark.find(':', colon)) != std::string_view::npos;
       ++colon) {
    std::size_t begin = colon;
    while (begin > 0 && is_name(remark[begin - 1])) --begin;
    const std::string name(remark.substr(begin, colon - begin));
    const bool ends = colon + 1 == remark.size() || is_blank(remark[colon + 1]);
    if (ends && keys_of_yaml().contains(name)) keys.push_back(name);
  }
  return keys;
}

// "\"name\":" of any.
std::vector<std::string> keys_in_json(std::string_view remark) {
  std::vector<std::string> keys;
  for (std::size_t at = 0; (at = remark.find('"', at)) != std::string_view::npos;) {
    const std::size_t end = remark.find('"', at + 1);
    if (end == std::string_view::npos) break;
    const std::string_view name = remark.substr(at + 1, end - at - 1);
    std::size_t next = end + 1;
    while (next < remark.size() && is_blank(remark[next])) ++next;
    const bool key = next < remark.size() && remark[next] == ':' && !name.empty() &&
                     std::all_of(name.begin(), name.end(), is_name);
    if (key) keys.emplace_back(name);
    at = key ? next : end + 1;
  }
  return keys;
}

// "name=value" and "name = value", without comparisons.
std::vector<std::string> names_in_python(std::string_view remark) {
  std::vector<std::string> names;
  for (std::size_t equals = 0; (equals = remark.find('=', equals)) != std::string_view::npos;
       ++equals) {
    if (equals + 1 < remark.size() && remark[equals + 1] == '=') {
      ++equals;
      continue;
    }
    std::size_t end = equals;
    while (end > 0 && is_blank(remark[end - 1])) --end;
    std::size_t begin = end;
    while (begin > 0 && is_name(remark[begin - 1])) --begin;
    const bool value = equals + 1 < remark.size();
    if (begin < end && value) names.emplace_back(remark.substr(begin, end - begin));
  }
  return names;
}

// Whether a line of the file has the key outside of remarks.
bool is_said(const std::string& text, const std::string& key) {
  for (std::size_t at = 0; (at = text.find(key + ":", at)) != std::string::npos; ++at) {
    const std::size_t line = at == 0 ? 0 : text.rfind('\n', at - 1) + 1;  // npos + 1: the first
    if (text.substr(line, at - line).find_first_not_of(" \t-{") == std::string::npos) return true;
  }
  return false;
}

// Names that a remark has taken; empty: it is a remark.
std::vector<std::string> taken_by(const Remark& remark, const ConfigText& file, FileKind kind,
                                  bool broken) {
  constexpr std::size_t kLong = 120;  // letters: longer than a line that people write
  std::vector<std::string> taken;
  switch (kind) {
    case FileKind::yaml:
      taken = keys_in_yaml(remark.text);
      std::erase_if(taken, [&](const std::string& key) { return is_said(file.text, key); });
      return remark.trails || taken.size() > 1 ? taken : std::vector<std::string>();
    case FileKind::json:
      taken = keys_in_json(remark.text);
      return remark.trails || broken ? taken : std::vector<std::string>();
    case FileKind::python: {
      taken = names_in_python(remark.text);
      const bool whole = remark.text.size() > kLong && taken.size() > 1 &&
                         remark.text.find("import ") != std::string_view::npos;
      const bool behind = remark.trails && taken.size() > (broken ? 0U : 1U);
      return whole || behind ? taken : std::vector<std::string>();
    }
    case FileKind::empty:
    case FileKind::prose:
    case FileKind::toml:
    case FileKind::hostfile:
    case FileKind::script:
      break;
  }
  return {};
}

std::string_view source_of(FileKind kind) {
  if (kind == FileKind::yaml) return "qplan: in YAML 1.1 a remark ends where its line does";
  if (kind == FileKind::python) return "Python 3, Lib/tokenize.py (Comment)";
  return "DeepSpeed edaa7221, deepspeed/runtime/config.py:699 (reads by hjson)";
}

// An object whose end a remark has taken, too.
bool is_cut_off(std::string_view json, const std::vector<Remark>& remarks) {
  std::int64_t depth = 0;
  std::size_t at = 0;
  const auto count = [&](std::string_view part) {
    for (const char c : part) depth += c == '{' ? 1 : c == '}' ? -1 : 0;
  };
  for (const Remark& remark : remarks) {
    const auto begin = static_cast<std::size_t>(remark.text.data() - json.data());
    count(json.substr(at, begin - at));
    at = begin + remark.text.size();
  }
  count(json.substr(at));
  return depth > 0;
}

}  // namespace

std::vector<Finding> swallowed_by_remarks(const ConfigText& file, FileKind kind) {
  if (kind != FileKind::yaml && kind != FileKind::json && kind != FileKind::python) return {};
  const std::vector<Remark> remarks = Remarks(file.text, kind).find();
  if (remarks.empty()) return {};
  const bool broken = kind == FileKind::python ? python_slip(file.text).has_value()
                                               : is_cut_off(file.text, remarks);
  std::vector<Finding> findings;
  for (const Remark& remark : remarks) {
    std::vector<std::string> taken = taken_by(remark, file, kind, broken);
    if (taken.empty()) continue;
    constexpr std::size_t kMost = 4;
    const std::size_t more = taken.size() > kMost ? taken.size() - kMost : 0;
    taken.resize(taken.size() - more);
    for (std::string& name : taken) name = shown(name);
    findings.push_back(
        {Severity::warning,
         "swallowed_by_remark",
         {file.name, remark.line},
         fmt::format("the remark goes to the end of its line and takes {}{} with it, which nobody "
                     "reads",
                     fmt::join(taken, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : std::string()),
         "begin a new line behind the remark: copied text has lost its line breaks",
         std::string(source_of(kind))});
  }
  return findings;
}

}  // namespace qplan
