#include "planner/frameworks/readers/python_dicts.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "models/ascii.h"
#include "models/error.h"

namespace qplan {
namespace {

// Behind the quote that ends the string which begins at `at`, whose JSON is added to `out`.
std::size_t add_python_string(std::string_view text, std::size_t at, std::string& out) {
  const char quote = text[at++];
  out += '"';
  while (at < text.size() && text[at] != quote) {
    if (text[at] == '\\' && at + 1 < text.size()) out += text[at++];
    if (text[at] == '"') out += '\\';
    out += text[at++];
  }
  out += '"';
  return at + 1;
}

std::string as_json_text(std::string_view text) {
  constexpr std::array<std::array<std::string_view, 2>, 3> kWords{
      {{"True", "true"}, {"False", "false"}, {"None", "null"}}};
  std::string json;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '\'' || text[at] == '"') {
      at = add_python_string(text, at, json);
      continue;
    }
    std::size_t end = at;
    while (end < text.size() && is_letter(text[end])) ++end;
    const std::string_view word = text.substr(at, end - at);
    const auto literal =
        std::find_if(kWords.begin(), kWords.end(), [&](const auto& row) { return row[0] == word; });
    if (word.empty()) {
      const char c = text[at++];
      json += c == '(' ? '[' : c == ')' ? ']' : c;
      continue;
    }
    json += literal == kWords.end() ? word : (*literal)[1];
    at = end;
  }
  return json;
}

// A dictionary as JSON of as many bytes, so that places stay: remarks are blank, and what is no
// literal is a text of its length.
class DictionaryText {
 public:
  DictionaryText(std::string_view file, Span span)
      : file_(file.substr(0, span.end)), json_(file_.size(), ' '), at_(span.begin) {
    for (std::size_t i = 0; i < file_.size(); ++i) {
      if (file_[i] == '\n') json_[i] = '\n';
    }
  }

  // Whether it is one.
  bool read() {
    skip();
    return peek() == '{' && brackets(0);
  }
  [[nodiscard]] const std::string& json() const { return json_; }
  [[nodiscard]] bool is_open(std::size_t at) const { return open_.contains(at); }

 private:
  [[nodiscard]] char peek() const { return at_ < file_.size() ? file_[at_] : '\0'; }
  void put(char c) { json_[at_++] = c; }

  void skip() {
    for (;;) {
      while (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') ++at_;
      if (peek() != '#') return;
      at_ = std::min(file_.find('\n', at_), file_.size());
    }
  }

  // Behind a text that begins here; npos: it does not end on its line, or JSON spells it otherwise.
  [[nodiscard]] std::size_t text_end(std::size_t from) const {
    const char quote = file_[from];
    for (std::size_t i = from + 1; i < file_.size() && file_[i] != '\n'; ++i) {
      if (file_[i] == '\\' || (file_[i] == '"' && quote != '"')) break;
      if (file_[i] == quote) return i + 1;
    }
    return std::string_view::npos;
  }

  void put_text(std::size_t end) {
    std::copy(file_.begin() + static_cast<std::ptrdiff_t>(at_),
              file_.begin() + static_cast<std::ptrdiff_t>(end),
              json_.begin() + static_cast<std::ptrdiff_t>(at_));
    json_[at_] = json_[end - 1] = '"';
    at_ = end;
  }

  [[nodiscard]] bool ends_value(std::size_t at) const {
    at = std::min(file_.find_first_not_of(" \t\r\n", at), file_.size());
    return at < file_.size() && std::string_view(",}])#").find(file_[at]) != std::string_view::npos;
  }

  // Of {...} or [...], and (..., ...), which is a list.
  bool brackets(int depth) {
    if (depth > kDeepestValue) return false;
    const bool keys = peek() == '{';
    const char end = keys ? '}' : peek() == '[' ? ']' : ')';
    put(keys ? '{' : '[');
    for (;;) {
      skip();
      if (peek() == end) {
        put(keys ? '}' : ']');
        return true;
      }
      if (keys) {
        if (peek() != '"' && peek() != '\'') return false;
        const std::size_t close = text_end(at_);
        if (close == std::string_view::npos) return false;
        put_text(close);
        skip();
        if (peek() != ':') return false;
        put(':');
        skip();
      }
      if (!value(depth)) return false;
      skip();
      if (peek() != ',') {
        if (peek() != end) return false;
        continue;
      }
      const std::size_t comma = at_++;
      skip();
      if (peek() != end) json_[comma] = ',';
    }
  }

  // "(2e8)" is a number, "(0.9, 0.95)" a list.
  [[nodiscard]] bool is_tuple() const {
    int depth = 0;
    for (std::size_t i = at_; i < file_.size(); ++i) {
      if (std::string_view("([{").find(file_[i]) != std::string_view::npos) ++depth;
      if (std::string_view(")]}").find(file_[i]) != std::string_view::npos && --depth == 0) {
        return false;
      }
      if (file_[i] == ',' && depth == 1) return ends_value(file_.find(')', i) + 1);
    }
    return false;
  }

  bool value(int depth) {
    if (peek() == '{' || peek() == '[' || (peek() == '(' && is_tuple())) {
      return brackets(depth + 1);
    }
    if (peek() == '"' || peek() == '\'') {
      const std::size_t close = text_end(at_);
      if (close != std::string_view::npos && ends_value(close)) {
        put_text(close);
        return true;
      }
      return expression();
    }
    std::size_t end = at_;
    while (end < file_.size() && (is_name(file_[end]) || std::string_view("+-.").find(file_[end]) !=
                                                             std::string_view::npos)) {
      ++end;
    }
    const std::string_view word = file_.substr(at_, end - at_);
    if (!ends_value(end) || word.empty()) return expression();
    if (word == "True" || word == "False" || word == "None") {
      const std::string_view json = word == "True" ? "true" : word == "None" ? "null" : "false";
      for (const char c : json) put(c);
      return true;
    }
    const bool number = (is_digit(word.front()) || word.front() == '-') &&
                        word.find_first_not_of("0123456789.eE+-") == std::string_view::npos &&
                        word.back() != '.';
    if (!number) return expression();
    for (const char c : word) put(c);
    return true;
  }

  // Up to the comma or bracket behind it.
  bool expression() {
    const std::size_t from = at_;
    int depth = 0;
    while (at_ < file_.size()) {
      const char c = peek();
      if (c == '"' || c == '\'') {
        const std::size_t close = file_.find(c, at_ + 1);
        if (close == std::string_view::npos) return false;
        at_ = close + 1;
        continue;
      }
      const bool closes = std::string_view(")]}").find(c) != std::string_view::npos;
      if (depth == 0 && (c == ',' || closes || c == '#')) break;
      if (std::string_view("([{").find(c) != std::string_view::npos) ++depth;
      if (closes) --depth;
      ++at_;
    }
    std::size_t end = at_;
    while (end > from && (file_[end - 1] == ' ' || file_[end - 1] == '\n')) --end;
    if (end == from) return false;
    open_.insert(from);
    if (end - from == 1) {
      json_[from] = '0';
      return true;
    }
    for (std::size_t i = from; i < end; ++i) json_[i] = i == from || i + 1 == end ? '"' : 'x';
    return true;
  }

  std::string_view file_;
  std::string json_;
  std::size_t at_;
  std::set<std::size_t> open_;
};

// A dictionary that stands here, or the only one that a variable of this name holds.
const PythonArgument* dictionary_behind(const PythonText& text, const PythonArgument& a) {
  if (a.text.starts_with('{')) return &a;
  const PythonArgument* found = nullptr;
  for (const PythonAssignment& assignment : text.assignments) {
    if (assignment.target != a.text) continue;
    if (found != nullptr || !assignment.value.text.starts_with('{')) return nullptr;
    found = &assignment.value;
  }
  return found;
}

// What is set behind the dictionary: `config["train_batch_size"] = n`, `config.update(...)`.
void leave_set_keys_open(std::string_view file, const std::string& variable, Settings& settings) {
  if (variable.empty()) return;
  Settings read;
  for (Setting setting : settings) {
    const std::string outermost = setting.key.substr(0, setting.key.find('.'));
    for (const char quote : {'"', '\''}) {
      const std::string item = variable + "[" + quote + outermost + quote + "]";
      setting.resolved = setting.resolved && file.find(item) == std::string_view::npos;
    }
    read.add(std::move(setting));
  }
  settings = std::move(read);
}

}  // namespace

Settings dictionary_in(std::string_view file, Span span, const std::string& name) {
  if (span.end <= span.begin || span.end > file.size()) return {};
  DictionaryText dictionary(file, span);
  if (!dictionary.read()) return {};
  Settings settings;
  try {
    for (Setting setting : read_json_settings(dictionary.json(), name).settings) {
      setting.syntax = Syntax::python;
      if (dictionary.is_open(setting.text.begin)) {
        setting.resolved = false;
        setting.value =
            std::string(file.substr(setting.text.begin, setting.text.end - setting.text.begin));
      }
      settings.add(std::move(setting));
    }
  } catch (const Error&) {
    return {};  // nested too deep, say
  }
  return settings;
}

Settings deepspeed_dictionary(const PythonText& text, std::string_view file,
                              const std::string& name) {
  constexpr auto kTakers =
      std::to_array<std::array<std::string_view, 2>>({{"initialize", "config"},
                                                      {"initialize", "config_params"},
                                                      {"HfDeepSpeedConfig", "config_file_or_dict"},
                                                      {"DeepSpeedPlugin", "hf_ds_config"}});
  for (const PythonCall& call : text.calls) {
    const std::string callee = call.callee.substr(call.callee.rfind('.') + 1);
    const PythonArgument* given = nullptr;
    for (const auto& [taker, keyword] : kTakers) {
      const bool own = taker != "initialize" || call.callee.find("deepspeed") == 0 ||
                       file.find("from deepspeed import initialize") != std::string_view::npos;
      if (callee == taker && own && given == nullptr) given = call.find(keyword);
    }
    if (callee == "HfDeepSpeedConfig" && given == nullptr && !call.arguments.empty()) {
      given = &call.arguments.front();
    }
    if (callee.ends_with("TrainingArguments") || callee.ends_with("Config")) {
      if (const PythonArgument* const of_trainer = call.find("deepspeed")) given = of_trainer;
    }
    const PythonArgument* const found =
        given == nullptr ? nullptr : dictionary_behind(text, *given);
    if (found == nullptr) continue;
    Settings settings = dictionary_in(file, found->span, name);
    const bool named = found != given;
    if (named && file.find(given->text + ".update(") != std::string_view::npos) return {};
    leave_set_keys_open(file, named ? given->text : std::string(), settings);
    if (!settings.empty()) return settings;
  }
  return {};
}

Settings dictionary_settings(const PythonArgument& argument, const std::string& section) {
  Settings settings;
  if (!argument.text.starts_with('{')) return settings;
  try {
    const std::string json = as_json_text(argument.text);
    for (Setting setting : read_json_settings(json, argument.place.file).settings) {
      settings.add({section + setting.key,
                    std::move(setting.value),
                    argument.place,
                    {},
                    {},
                    true,
                    {},
                    Syntax::python});
    }
  } catch (const Error&) {
    return {};  // an expression
  }
  return settings;
}

}  // namespace qplan
