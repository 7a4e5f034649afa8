// Corrections in the syntax of the place where they stand. What they do to the whole is for fix()
// to verify (fix.h); here is only what each place can hold.

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "planner/frameworks/scene.h"
#include "planner/frameworks/shared_values.h"
#include "planner/frameworks/spelled_values.h"
#include "planner/frameworks/text_places.h"

namespace qplan {
namespace {

Correction refused(std::string sentence) {
  Correction none;
  none.why_not = std::move(sentence);
  return none;
}

Correction elsewhere() {
  return refused("its value does not stand beside it in one piece");
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
  const std::string* const text = scene.find_text(anchor.place.file);
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

// "key = value" below a key of the same table.
Correction added_toml(const Scene& scene, const Setting& anchor,
                      const std::vector<Argument>& arguments) {
  const std::string* const text = scene.find_text(anchor.place.file);
  if (text == nullptr || is_empty(anchor.text) || !begins_line(*text, anchor)) return {};
  const Span line = line_at(*text, anchor.whole.begin);
  const std::size_t at = line_at(*text, anchor.whole.end).end;
  const std::string indent(cut(*text, {line.begin, anchor.whole.begin}));
  std::string lines;
  for (const Argument& argument : arguments) {
    if (argument.values.size() > 1) return {};
    lines += fmt::format("{}{}{} = {}", line_break(*text, at), indent, last_name(argument.key),
                         argument.values.empty() ? "true" : in_json(argument.values[0], ""));
  }
  return Correction{{anchor.place.file, at, at, lines}};
}

Correction added_yaml(const Scene& scene, const Setting& anchor,
                      const std::vector<Argument>& arguments) {
  const std::string* const text = scene.find_text(anchor.place.file);
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
    lines += key;
    lines += ": ";
    lines += value;
  }
  return Correction{{anchor.place.file, at, at, lines}};
}

// Whether the same job says the key besides. NeMo-RL's file stands on top of others, which say all
// of them.
bool is_given(const ConfigPart& part, const Setting& setting, const std::string& key) {
  if (part.dialect != Dialect::nemo_rl) return part.settings.has(key);
  return std::any_of(part.settings.begin(), part.settings.end(), [&](const Setting& other) {
    return other.key == key && other.place.file == setting.place.file;
  });
}

// Of an option's list; null: none has it.
const KnownOption* option_in_list(const ConfigPart& part, const std::string& key) {
  if (option_list_of(part.dialect).empty()) return nullptr;
  const KnownOption* const known = known_options(option_list_of(part.dialect)).find(key);
  if (known != nullptr || part.dialect != Dialect::slime) return known;
  return known_options("megatron").find(key);
}

}  // namespace

std::string why_not_accepted(const ConfigPart& part, const std::string& key,
                             const Setting& setting) {
  const KnownOption* const known = option_in_list(part, key);
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
  if (!key.starts_with("--") && known->type == "bool" && !value.is_boolean() &&
      !(part.dialect == Dialect::ds_config && text_of(value) == "auto")) {
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
  const std::string* const text = scene.find_text(setting.place.file);
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
    case Syntax::toml:
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
  const std::string* const text = scene.find_text(setting.place.file);
  if (text == nullptr || is_empty(setting.name)) {
    return refused("its name does not stand in the file in one piece");
  }
  const std::string_view raw = cut(*text, setting.name);
  // A key of YAML, or a keyword of Python, for an argument.
  const bool yaml_key = (setting.syntax == Syntax::yaml || setting.syntax == Syntax::python) &&
                        setting.key.starts_with("--") && !raw.starts_with("--");
  // accelerate puts it before a name that has it not, and the new one is written as the old.
  constexpr std::string_view kPrefix = "fsdp_";
  const bool without = part.dialect == Dialect::accelerate && !raw.starts_with("fsdp") &&
                       last_name(setting.key).starts_with(kPrefix);
  const auto spelled = [&](const std::string& name) {
    if (without && last_name(name).starts_with(kPrefix)) {
      return last_name(name).substr(kPrefix.size());
    }
    return yaml_key ? as_yaml_key(name) : name.starts_with("--") ? name : last_name(name);
  };
  const std::string written = spelled(setting.key);
  const bool dotted = setting.syntax == Syntax::words && !setting.key.starts_with("--");
  // Hydra's override: the whole key, without dashes.
  const bool hydra = dotted && (part.dialect == Dialect::verl || part.dialect == Dialect::nemo_rl);
  const std::string dashes = hydra ? "" : "--";
  if (dotted ? raw != dashes + setting.key
             : raw != written && as_yaml_key(std::string(raw)) != written) {
    return refused("its name is spelled otherwise in the file");
  }
  if (!hydra && section_of(key) != section_of(setting.key)) {
    return refused(fmt::format("{} stands in another section", key));
  }
  if (is_given(part, setting, key)) return refused(fmt::format("{} is given too", key));
  if (std::string why = why_not_accepted(part, key, setting); !why.empty()) {
    return refused(std::move(why));
  }
  Correction correction{{setting.place.file, setting.name.begin, setting.name.end,
                         dotted ? dashes + key : spelled(key)}};
  correction.renames = true;
  return correction;
}

Correction removed(const Scene& scene, const ConfigPart& part, const Setting& setting) {
  if (part.dialect == Dialect::bridge)
    return refused("its recipe's own value would take its place");
  const std::string* const text = scene.find_text(setting.place.file);
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
    case Syntax::toml:
      if (cut(*text, setting.text).find('\n') != std::string_view::npos ||
          !begins_line(*text, setting)) {
        return refused("it does not stand on a line of its own");
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
  const std::string* const text = scene.find_text(setting.place.file);
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
    } else if (anchor->syntax == Syntax::toml) {
      correction = added_toml(scene, *anchor, wanted);
    }
    if (!correction.empty()) return correction;
  }
  return refused("no place beside the other options takes it");
}

}  // namespace qplan
