// Corrections in the syntax of the place where they stand. What they do to the whole is for fix()
// to verify (fix.h); here is only what each place can hold.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <sstream>
#include <string_view>

#include "planner/frameworks/scene.h"
#include "planner/frameworks/shell/text.h"

namespace qplan {
namespace {

constexpr std::string_view kBlanks = " \t\r";

Correction refused(std::string sentence) {
  Correction none;
  none.why_not = std::move(sentence);
  return none;
}

Correction elsewhere() {
  return refused("its value does not stand beside it in one piece");
}

const std::string* text_of_file(const Scene& scene, const std::string& name) {
  for (const ConfigText& file : scene.files.texts) {
    if (file.name == name) return &file.text;
  }
  return nullptr;
}

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

std::string last_name(const std::string& key) {
  const std::size_t dot = key.rfind('.');
  return dot == std::string::npos ? key : key.substr(dot + 1);
}

// With its dot; empty: the outermost.
std::string section_of(const std::string& key) {
  const std::size_t dot = key.starts_with("--") ? std::string::npos : key.rfind('.');
  return dot == std::string::npos ? "" : key.substr(0, dot + 1);
}

// "--kv-channels" as a key of a YAML that spells them "kv_channels".
std::string as_yaml_key(std::string flag) {
  flag.erase(0, flag.starts_with("--") ? 2 : 0);
  std::replace(flag.begin(), flag.end(), '-', '_');
  return flag;
}

// The line that holds `at`, without its end.
Span line_at(const std::string& text, std::size_t at) {
  const std::size_t before = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  std::size_t end = std::min(text.find('\n', at), text.size());
  if (end > begin && end > at && text[end - 1] == '\r') --end;
  return {begin, end};
}

// Behind the line's end.
std::size_t next_line(const std::string& text, std::size_t at) {
  const std::size_t end = text.find('\n', at);
  return end == std::string::npos ? text.size() : end + 1;
}

std::string line_break(const std::string& text, std::size_t at) {
  const std::size_t end = next_line(text, at);
  return end >= 2 && text[end - 1] == '\n' && text[end - 2] == '\r' ? "\r\n" : "\n";
}

// ---- values ----

bool is_number(const std::string& text) {
  const Json read = Json::parse(text, nullptr, false);
  return !read.is_discarded() && read.is_number();
}

bool is_plain(std::string_view text, std::string_view more) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           more.find(c) != std::string_view::npos;
  });
}

std::string in_quotes(const std::string& text, char quote) {
  std::string result(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') result += '\\';
    result += c;
  }
  return result + quote;
}

// `raw` is what stood there, whose quotes are kept; empty: nothing did.
std::string in_yaml(const std::string& value, std::string_view raw) {
  const char quote = raw.empty() ? '\0' : raw.front();
  if (quote == '\'' && value.find('\'') == std::string::npos) return "'" + value + "'";
  const bool plain = is_plain(value, "_./+-") && value.front() != '-';
  return quote == '"' || !(plain || is_number(value)) ? in_quotes(value, '"') : value;
}

std::string in_json(const std::string& value, std::string_view raw) {
  const bool literal = value == "true" || value == "false" || is_number(value);
  const bool quoted = !raw.empty() && raw.front() == '"';
  return literal && !quoted ? value : in_quotes(value, '"');
}

std::string in_python(const std::string& value, std::string_view raw) {
  const char quote = raw.empty() ? '\0' : raw.front();
  if (quote == '"' || quote == '\'') return in_quotes(value, quote);
  if (value == "true") return "True";
  if (value == "false") return "False";
  return is_number(value) ? value : in_quotes(value, '"');
}

// A word of a shell that stands in no quotes; nothing: it cannot be written.
std::optional<std::string> in_words(const std::string& value) {
  if (is_plain(value, "_-+./:=,@%")) return value;
  if (value.empty() || value.find_first_of("'\n") != std::string::npos) return std::nullopt;
  return "'" + value + "'";
}

// ---- flags and where their values stand ----

// Whether a quote may stand behind a value, which would take in what is written there: its own
// begins further from the key than one blank or '='.
bool ends_in_quotes(const Setting& setting) {
  const bool has_value = !is_empty(setting.text);
  return has_value && (setting.value.is_array() ||
                       setting.text.begin != setting.whole.begin + setting.key.size() + 1);
}

// A flag, then its value behind blanks, '=', a quote or a continued line: not one that a variable
// holds elsewhere, or that arithmetic made.
bool in_one_piece(const std::string& text, const Setting& s) {
  if (is_empty(s.whole)) return false;
  if (s.value.is_boolean() && s.whole.end == s.name.end) return true;
  if (s.text.begin < s.name.end || is_empty(s.text) || s.text.end > text.size()) return false;
  const auto between = cut(text, {s.name.end, s.text.begin});
  return between.find_first_not_of(" \t\r\n\\=\"'") == std::string_view::npos &&
         cut(text, s.text).find('$') == std::string_view::npos;
}

// Whether the bytes of the value spell it.
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

// Another option whose value is the same bytes; empty: none.
std::string other_reader(const Scene& scene, const Setting& s) {
  const auto shares = [&](const Setting& other) {
    return other.place.file == s.place.file && other.name.begin != s.name.begin &&
           other.key != s.key && other.text.begin < s.text.end && s.text.begin < other.text.end;
  };
  const auto among = [&](const Settings& settings) {
    const auto found = std::find_if(settings.begin(), settings.end(), shares);
    return found == settings.end() ? std::string() : found->key;
  };
  for (const ConfigPart& part : scene.files.parts) {
    if (std::string key = among(part.settings); !key.empty()) return key;
  }
  for (const Launch& launch : scene.files.launches) {
    if (std::string key = among(launch.options); !key.empty()) return key;
  }
  return "";
}

// How often a name stands in `line` by itself.
std::size_t count_name(std::string_view line, std::string_view name) {
  std::size_t count = 0;
  for (std::size_t at = line.find(name); at != std::string_view::npos;
       at = line.find(name, at + name.size())) {
    const std::size_t end = at + name.size();
    const bool begins = at == 0 || !is_shell_name(line[at - 1]);
    count += begins && (end == line.size() || !is_shell_name(line[end])) ? 1U : 0U;
  }
  return count;
}

// Uses of a variable beside the line that sets it.
std::size_t uses_of(const Scene& scene, std::string_view name, const std::string& text,
                    Span definition) {
  std::size_t uses = 0;
  for (const ConfigText& file : scene.files.texts) {
    for (std::size_t at = 0; at < file.text.size(); at = next_line(file.text, at)) {
      if (&file.text == &text && at == definition.begin) continue;
      const std::string_view line = cut(file.text, line_at(file.text, at));
      const std::size_t first = line.find_first_not_of(kBlanks);
      if (first == std::string_view::npos || line[first] == '#') continue;
      // What is made of it for another variable may be used anywhere.
      std::size_t word = first;
      while (word < line.size() && is_shell_name(line[word])) ++word;
      const bool assigns = word > first && word < line.size() && line[word] == '=';
      uses += count_name(line, name) * (assigns ? 2U : 1U);
    }
  }
  return uses;
}

// Why a value that a shell's variable holds stays as it is; empty: this option alone reads it.
std::string why_keep_variable(const Scene& scene, const std::string& text, const Setting& s) {
  const Span line = line_at(text, s.text.begin);
  const std::string_view before = cut(text, {line.begin, s.text.begin});
  const std::size_t word = before.find_first_not_of(kBlanks);
  std::string_view name;
  for (std::size_t equals = before.find('='); equals != std::string_view::npos && name.empty();
       equals = before.find('=', equals + 1)) {
    std::size_t from = equals;
    while (from > 0 && is_shell_name(before[from - 1])) --from;
    const bool whole_word = from == 0 || before[from - 1] == ' ' || before[from - 1] == '\t';
    if (from < equals && whole_word) name = before.substr(from, equals - from);
  }
  if (name.empty()) return "its value stands elsewhere, where it may mean more";
  if (before.substr(word).starts_with("export") || before.substr(word).starts_with("declare")) {
    return fmt::format("{} holds the value and is exported, so that other programs may read it",
                       name);
  }
  // "TP=${TP:-4}" names it twice.
  const std::size_t here = count_name(cut(text, line), name);
  const bool its_default = before.find(fmt::format("${{{}", name)) != std::string_view::npos;
  const bool more_here = here > (its_default ? 2U : 1U);
  if (more_here || uses_of(scene, name, text, line) > 1) {
    return fmt::format("{} holds the value, and other lines of the script use it too", name);
  }
  return "";
}

// A word's own quotes, where it stands in some: "--flag" and the value behind it.
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

// ---- places in files of keys ----

// A key that begins its line, in YAML's block style.
bool begins_line(const std::string& text, const Setting& s) {
  const std::string_view before = cut(text, {line_at(text, s.whole.begin).begin, s.whole.begin});
  return is_blank(before);
}

// Values that other places may share, or that span lines in a way of their own.
bool is_special_yaml(std::string_view raw) {
  return !raw.empty() && std::string_view("&*!|>").find(raw.front()) != std::string_view::npos;
}

// A member of an object or a call, with one of its commas.
Span with_comma(const std::string& text, Span span) {
  const auto blank = [&](std::size_t at) {
    return kBlanks.find(text[at]) != std::string_view::npos || text[at] == '\n';
  };
  std::size_t after = span.end;
  while (after < text.size() && blank(after)) ++after;
  if (after < text.size() && text[after] == ',') {
    span.end = after + 1;
    while (span.end < text.size() && blank(span.end)) ++span.end;
    return span;
  }
  while (span.begin > 0 && blank(span.begin - 1)) --span.begin;
  if (span.begin > 0 && text[span.begin - 1] == ',') --span.begin;
  return span;
}

// ---- what is taken out ----

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

// Its line; what is remarked behind it stays.
Span yaml_to_remove(const std::string& text, const Setting& s) {
  if (!begins_line(text, s)) return with_comma(text, s.whole);
  const Span line{line_at(text, s.whole.begin).begin, line_at(text, s.whole.end).end};
  const std::string_view after = cut(text, {s.whole.end, line.end});
  if (is_blank(after)) return {line.begin, next_line(text, s.whole.end)};
  return {s.whole.begin, s.whole.end + std::min(after.find_first_not_of(kBlanks), after.size())};
}

// Whether a section would be left without keys.
bool is_only_key(const ConfigPart& part, const Setting& setting) {
  const auto path = std::find_if(part.settings.begin(), part.settings.end(), [&](const Setting& s) {
    return s.name.begin == setting.name.begin && !s.key.starts_with("--");
  });
  if (path == part.settings.end()) return false;
  const std::string section = section_of(path->key);
  return !section.empty() &&
         std::none_of(part.settings.begin(), part.settings.end(), [&](const Setting& s) {
           return s.name.begin != setting.name.begin && s.key.starts_with(section);
         });
}

// ---- what is put in ----

struct Argument {
  std::string key;
  std::vector<std::string> values;
};

std::vector<Argument> arguments_in(const std::string& text) {
  std::vector<Argument> arguments;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (word.starts_with("--") || arguments.empty()) {
      arguments.push_back({word, {}});
    } else {
      arguments.back().values.push_back(word);
    }
  }
  return arguments;
}

Correction added_words(const Scene& scene, const Setting& anchor,
                       const std::vector<Argument>& arguments) {
  const std::string* const text = text_of_file(scene, anchor.place.file);
  if (text == nullptr || !in_one_piece(*text, anchor) || ends_in_quotes(anchor)) return {};
  std::string words;
  for (const Argument& argument : arguments) {
    words += ' ' + argument.key;
    for (const std::string& value : argument.values) {
      const auto word = in_words(value);
      if (!word) return {};
      words += ' ' + *word;
    }
  }
  const std::size_t at = with_quotes(*text, anchor).end;
  return Correction{{anchor.place.file, at, at, words}};
}

Correction added_yaml(const Scene& scene, const Setting& anchor,
                      const std::vector<Argument>& arguments) {
  const std::string* const text = text_of_file(scene, anchor.place.file);
  if (text == nullptr || is_empty(anchor.name) || is_empty(anchor.text)) return {};
  if (is_special_yaml(cut(*text, anchor.text))) return {};
  const bool flags = cut(*text, anchor.name).starts_with("--");
  const bool block = begins_line(*text, anchor);
  const Span line = line_at(*text, anchor.whole.begin);
  const std::size_t at = block ? line_at(*text, anchor.whole.end).end : anchor.whole.end;
  const std::string indent(cut(*text, {line.begin, anchor.whole.begin}));
  std::string lines;
  for (const Argument& argument : arguments) {
    if (argument.values.size() > 1) return {};
    const std::string key = flags ? argument.key : as_yaml_key(last_name(argument.key));
    const std::string value = argument.values.empty() ? "true" : in_yaml(argument.values[0], "");
    lines += block ? line_break(*text, at) + indent : ", ";
    lines += key + ": " + value;
  }
  return Correction{{anchor.place.file, at, at, lines}};
}

// Of an option's list; null: none has it.
const KnownOption* known_option(const ConfigPart& part, const std::string& key) {
  if (option_list_of(part.dialect).empty()) return nullptr;
  const KnownOption* const known = known_options(option_list_of(part.dialect)).find(key);
  if (known != nullptr || part.dialect != Dialect::slime) return known;
  return known_options("megatron").find(key);
}

}  // namespace

std::string why_not_accepted(const ConfigPart& part, const std::string& key,
                             const Setting& setting) {
  const KnownOption* const known = known_option(part, key);
  if (known == nullptr) return "";
  const Json& value = setting.value;
  const auto values = list_of(value);
  if (key.starts_with("--")) {
    if (known->arity == "0" && !value.is_boolean()) return fmt::format("{} takes no value", key);
    const bool several = known->arity == "+" || known->arity == "*" || known->arity == "?";
    if (known->arity != "0" && known->arity != "*" && known->arity != "?" && value.is_boolean()) {
      return fmt::format("{} takes a value", key);
    }
    if (!several && known->arity != "0" && fmt::format("{}", values.size()) != known->arity) {
      return fmt::format("{} takes another number of values", key);
    }
  }
  if (!key.starts_with("--") && known->type == "bool" && !value.is_boolean()) {
    return fmt::format("{} takes true or false", key);
  }
  if (value.is_boolean() || !setting.resolved || text_of(value) == "auto") return "";
  for (const std::string& item : values) {
    const bool choice =
        known->choices.empty() || part.dialect == Dialect::torchtitan ||
        std::find(known->choices.begin(), known->choices.end(), item) != known->choices.end();
    const bool number = (known->type != "int" && known->type != "float") || is_number(item);
    if (!choice || !number) return fmt::format("{} does not take {}", key, shown(item));
  }
  return "";
}

Correction with_value(const Scene& scene, const Setting& setting, const std::string& value) {
  const std::string* const text = text_of_file(scene, setting.place.file);
  if (text == nullptr || is_empty(setting.text) || setting.text.end > text->size()) {
    return elsewhere();
  }
  const std::string_view raw = cut(*text, setting.text);
  if (const std::string other = other_reader(scene, setting); !other.empty()) {
    return refused(fmt::format("{} takes its value from the same place", other));
  }
  std::string spelled;
  switch (setting.syntax) {
    case Syntax::words: {
      if (!spells_value(*text, setting)) return elsewhere();
      if (!in_one_piece(*text, setting)) {
        std::string why = why_keep_variable(scene, *text, setting);
        if (!why.empty()) return refused(std::move(why));
      }
      const char before = setting.text.begin > 0 ? (*text)[setting.text.begin - 1] : '\0';
      const auto word = in_words(value);
      const bool quoted = before == '\'' || before == '"';
      if (!word || (quoted && value.find_first_of("'\"$`\\") != std::string::npos)) {
        return refused("the new value needs quotes that the place does not allow");
      }
      spelled = quoted ? value : *word;
      break;
    }
    case Syntax::yaml:
      if (is_special_yaml(raw) || raw.find('\n') != std::string_view::npos) {
        return refused("other keys may share the value by its anchor");
      }
      spelled = in_yaml(value, raw);
      break;
    case Syntax::json:
      spelled = in_json(value, raw);
      break;
    case Syntax::python:
      if (!setting.resolved) return refused("the value is an expression");
      spelled = in_python(value, raw);
      break;
  }
  return Correction{{setting.place.file, setting.text.begin, setting.text.end, spelled}};
}

Correction with_key(const Scene& scene, const ConfigPart& part, const Setting& setting,
                    const std::string& key) {
  const std::string* const text = text_of_file(scene, setting.place.file);
  if (text == nullptr || is_empty(setting.name)) {
    return refused("its name does not stand in the file in one piece");
  }
  const std::string_view raw = cut(*text, setting.name);
  const bool yaml_key =
      setting.syntax == Syntax::yaml && setting.key.starts_with("--") && !raw.starts_with("--");
  const auto spelled = [&](const std::string& name) {
    return yaml_key ? as_yaml_key(name) : name.starts_with("--") ? name : last_name(name);
  };
  const std::string written = spelled(setting.key);
  const bool dotted = setting.syntax == Syntax::words && !setting.key.starts_with("--");
  if (dotted ? raw != "--" + setting.key
             : raw != written && as_yaml_key(std::string(raw)) != written) {
    return refused("its name is spelled otherwise in the file");
  }
  if (section_of(key) != section_of(setting.key)) {
    return refused(fmt::format("{} stands in another section", key));
  }
  if (part.settings.has(key)) return refused(fmt::format("{} is given too", key));
  if (std::string why = why_not_accepted(part, key, setting); !why.empty()) {
    return refused(std::move(why));
  }
  Correction correction{{setting.place.file, setting.name.begin, setting.name.end,
                         dotted ? "--" + key : spelled(key)}};
  correction.renames = true;
  return correction;
}

Correction removed(const Scene& scene, const ConfigPart& part, const Setting& setting) {
  if (part.dialect == Dialect::bridge)
    return refused("its recipe's own value would take its place");
  const std::string* const text = text_of_file(scene, setting.place.file);
  if (text == nullptr || is_empty(setting.whole)) return elsewhere();
  Span span;
  switch (setting.syntax) {
    case Syntax::words:
      if (!in_one_piece(*text, setting)) return elsewhere();
      span = word_to_remove(*text, setting);
      break;
    case Syntax::yaml:
      if (is_special_yaml(cut(*text, setting.text))) {
        return refused("other keys may share the value by its anchor");
      }
      if (is_only_key(part, setting)) return refused("its section would be left empty");
      if (cut(*text, setting.text).find('\n') != std::string_view::npos) {
        return refused("its value spans several lines");
      }
      span = yaml_to_remove(*text, setting);
      break;
    case Syntax::json:
    case Syntax::python:
      span = with_comma(*text, setting.whole);
      break;
  }
  return Correction{{setting.place.file, span.begin, span.end, ""}};
}

Correction replaced(const Scene& scene, const Setting& setting, const std::string& arguments) {
  const std::string* const text = text_of_file(scene, setting.place.file);
  const bool words = text != nullptr && setting.syntax == Syntax::words;
  if (!words || !in_one_piece(*text, setting)) return elsewhere();
  const Span span = with_quotes(*text, setting);
  return Correction{{setting.place.file, span.begin, span.end, arguments}};
}

Correction added(const Scene& scene, const ConfigPart& part, const std::string& arguments) {
  std::vector<Argument> wanted = arguments_in(arguments);
  std::erase_if(wanted, [&](const Argument& a) { return part.settings.has(a.key); });
  if (wanted.empty()) return refused("what it needs is there, with another meaning");
  const std::string section = section_of(wanted.front().key);
  std::vector<const Setting*> anchors;
  for (const Setting& setting : part.settings) {
    if (!is_empty(setting.whole) && section_of(setting.key) == section) anchors.push_back(&setting);
  }
  // Keys stand beside their like: expert_tensor_parallel_size by expert_model_parallel_size.
  const auto alike = [&](const Setting* setting) -> std::ptrdiff_t {
    if (setting->syntax != Syntax::yaml) return 0;
    const std::string &a = setting->key, &b = wanted.front().key;
    const auto first = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
    const auto last = std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first;
    return (first - a.begin()) + (last - a.rbegin());
  };
  std::stable_sort(anchors.begin(), anchors.end(),
                   [&](const Setting* a, const Setting* b) { return alike(a) > alike(b); });
  for (const Setting* const anchor : anchors) {
    Correction correction;
    if (anchor->syntax == Syntax::words && anchor->key.starts_with("--")) {
      correction = added_words(scene, *anchor, wanted);
    } else if (anchor->syntax == Syntax::yaml) {
      correction = added_yaml(scene, *anchor, wanted);
    }
    if (!correction.empty()) return correction;
  }
  return refused("no place beside the other options takes it");
}

}  // namespace qplan
