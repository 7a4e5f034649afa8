#include "planner/frameworks/refused_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "models/ascii.h"
#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/deepspeed/own_switch.h"
#include "planner/frameworks/option_names.h"
#include "planner/frameworks/option_value.h"
#include "planner/frameworks/readers/accelerate_keys.h"
#include "planner/frameworks/slips.h"
#include "planner/frameworks/spelled_values.h"

namespace qplan {
namespace {

// Of a TOML's keys those that a command says on top of it are words.
ValueReader reader_of(const ConfigPart& part, const Setting& setting) {
  if (part.dialect == Dialect::torchtitan_toml && setting.syntax == Syntax::words) {
    return ValueReader::argparse;
  }
  switch (part.dialect) {
    case Dialect::ds_config:
      return ValueReader::json;
    case Dialect::accelerate:
      return ValueReader::yaml;
    case Dialect::trainer:
    case Dialect::trl:
    case Dialect::ms_swift:
    case Dialect::ms_swift_megatron:
      return ValueReader::trainer;
    case Dialect::llama_factory:
    case Dialect::torchtune:
      return ValueReader::yaml;
    case Dialect::automodel:
      return ValueReader::yaml;
    case Dialect::axolotl:  // pydantic, which takes false for 0
      return ValueReader::json;
    case Dialect::nanotron:         // dacite converts nothing
    case Dialect::torchtitan_toml:  // nothing converts what tomllib read
      return ValueReader::python;
    case Dialect::torchtitan:
      return part.script.empty() ? ValueReader::python : ValueReader::argparse;
    case Dialect::megatron:
    case Dialect::megatron_yaml:
    case Dialect::slime:
    case Dialect::megatron_deepspeed:
    case Dialect::bridge:
    case Dialect::own_script:
    case Dialect::verl:
    case Dialect::nemo_rl:
    case Dialect::openrlhf:
      break;
  }
  return ValueReader::argparse;
}

// Whether the script has no arguments without a flag. slime ignores what it does not know.
bool takes_no_others(const ConfigPart& part) {
  switch (part.dialect) {
    case Dialect::megatron:
      return is_of_megatron(part.script);
    case Dialect::megatron_deepspeed:
      return true;
    case Dialect::trainer:
      return base_name(part.script) == "run_clm.py";
    case Dialect::slime:
    case Dialect::torchtitan:
    case Dialect::megatron_yaml:
    case Dialect::bridge:
    case Dialect::ds_config:
    case Dialect::accelerate:
    case Dialect::own_script:
    case Dialect::llama_factory:
    case Dialect::axolotl:
    case Dialect::verl:
    case Dialect::nemo_rl:
    case Dialect::ms_swift:
    case Dialect::ms_swift_megatron:
    case Dialect::automodel:
    case Dialect::trl:
    case Dialect::torchtune:
    case Dialect::openrlhf:
    case Dialect::torchtitan_toml:
    case Dialect::nanotron:
      break;
  }
  return false;
}

// A number that argparse does not read and JSON would: 1e6.
Correction in_digits(const Scene& scene, const KnownOption& known, const Setting& setting) {
  if (known.type != "int" || !setting.key.starts_with("--") || setting.value.is_array()) return {};
  try {
    return with_value(scene, setting, fmt::format("{}", whole_of(setting.value)));
  } catch (const Error&) {
    return {};
  }
}

// What stands in quotes and is meant as it is ("8"), or the other way round, or has a fraction of
// nothing (8.0), or an exponent that YAML 1.1 reads as text (1e-4): of readers that convert
// nothing.
Correction as_typed(const ConfigPart& part, const KnownOption& known, const Setting& setting) {
  const bool literal =
      part.dialect == Dialect::torchtitan_toml || part.dialect == Dialect::nanotron;
  if (!literal || setting.text.end <= setting.text.begin || setting.value.is_structured())
    return {};
  const auto write = [&](std::string text) {
    return Correction{{setting.place.file, setting.text.begin, setting.text.end, std::move(text)}};
  };
  const std::string text = text_of(setting.value);
  const bool whole = known.type == "int";
  if (known.type == "str") {
    return setting.value.is_number_integer() ? write('"' + text + '"') : Correction{};
  }
  if (known.type == "bool") {
    return setting.value.is_string() && (text == "true" || text == "false") ? write(text)
                                                                            : Correction{};
  }
  if ((!whole && known.type != "float") || !is_number(text)) return {};
  const double number = number_of(Json::parse(text));
  const bool fits = number >= known.low && number <= known.high;
  if (!fits || (whole && std::floor(number) != number)) return {};
  if (whole) return write(fmt::format("{}", static_cast<std::int64_t>(number)));
  std::string spelled = text;
  const std::size_t e = spelled.find_first_of("eE");
  if (e != std::string::npos && setting.syntax == Syntax::yaml) {
    if (is_digit(spelled[e + 1])) spelled.insert(e + 1, "+");
    if (spelled.find('.') == std::string::npos) spelled.insert(e, ".0");
  }
  return write(std::move(spelled));
}

// Whether a value of true stands for a flag that nothing follows. In Python and in a YAML it is a
// value like any other; but Megatron's YAML is handed on as a command.
bool is_of_command(const ConfigPart& part, const Setting& setting) {
  return setting.syntax == Syntax::words || part.dialect == Dialect::megatron ||
         part.dialect == Dialect::megatron_yaml || part.dialect == Dialect::slime ||
         part.dialect == Dialect::megatron_deepspeed;
}

// Whether a message begins with an option's name, however it is spelled there: what YAML keys and
// ms-swift's arguments ask for is read as a Trainer's or Megatron's arguments.
bool names_option(const std::string& message, const std::string& key) {
  const auto bare = [](std::string_view name) {
    std::string letters;
    for (const char c : name.substr(name.starts_with("--") ? 2 : 0)) {
      letters += c == '-' ? '_' : c;
    }
    return letters;
  };
  return bare(std::string_view(message).substr(0, message.find(' '))) == bare(key);
}

// "0", "1", "3": how many values an argument takes.
std::string values_of_arity(const std::string& arity) {
  return arity == "0"                       ? "no value"
         : is_number(arity) && arity != "1" ? arity + " values"
                                            : "one value";
}

std::string sentence_of(const Setting& setting, const std::string& wanted) {
  return fmt::format("{} is {}, and must be {}", setting.key, shown(text_of(setting.value)),
                     wanted);
}

// The value that is certainly meant; empty: none is. Of what starts a job the file's other sections
// tell, too.
std::string meant_value(const ConfigPart& part, const Setting& setting, const KnownOption& known) {
  if (setting.value.is_array()) return "";
  if (part.dialect == Dialect::accelerate && setting.key == "distributed_type") {
    return distributed_type_of(part.settings).meant;
  }
  const std::string text = text_of(setting.value);
  if (std::string choice = certain_choice(text, known.choices); !choice.empty()) return choice;
  if (known.type == "bool") return certain_choice(lower_case(text), {"true", "false"});
  // "32,", as items of Python's have it.
  if (setting.syntax == Syntax::words && text.size() > 1 && text.ends_with(',')) {
    const std::string bare = text.substr(0, text.size() - 1);
    if (wanted_instead(known, Json(bare), reader_of(part, setting)).empty()) return bare;
  }
  return "";
}

// "learning_rate: [2e-5]", of keys that are numbers, truths or words of a few. What is a list of
// one to a shell is none in a YAML.
bool is_list_of_scalar(const ConfigPart& part, const KnownOption& known, const Setting& setting) {
  const Dialect d = part.dialect;
  const bool judged = d == Dialect::trl || d == Dialect::llama_factory || d == Dialect::axolotl ||
                      d == Dialect::automodel || d == Dialect::accelerate ||
                      d == Dialect::torchtune;
  const bool scalar = known.type == "int" || known.type == "float" || known.type == "bool" ||
                      known.type == "any case" || !known.choices.empty();
  const bool one = known.arity == "1" || known.arity == "?";
  return judged && scalar && one && setting.syntax == Syntax::yaml && setting.value.is_array();
}

// Said by the command, too, which counts: accelerate does not look at its file's.
bool is_said_by_launch(const Scene& scene, const Setting& setting) {
  const auto& launches = scene.files.launches;
  return std::any_of(launches.begin(), launches.end(), [&](const Launch& launch) {
    return launch.program == "accelerate" && setting.key.find('.') == std::string::npos &&
           launch.options.has("--" + setting.key);
  });
}

// "--save your model save ckpt path", "--load <path to the checkpoint>", of an example.
bool is_placeholder(const Setting& setting) {
  const std::string first = lower_case(text_of(setting.value));
  return first == "your" || (first.starts_with('<') && setting.extra.ends_with('>'));
}

}  // namespace

void check_value(const Scene& scene, const ConfigPart& part, const Setting& setting,
                 Findings& out) {
  const KnownOption* const known = known_option(part, setting.key);
  if (known == nullptr || !setting.resolved) return;
  // What a plan's word refuses was said already.
  const auto said = std::find_if(out.begin(), out.end(), [&](const Finding& f) {
    return f.rule == "bad_value" && f.place.file == setting.place.file &&
           f.place.line == setting.place.line && names_option(f.message, setting.key);
  });
  // Filled in by Hugging Face's Trainer, or a trap of its own.
  const bool automatic = part.dialect == Dialect::ds_config && text_of(setting.value) == "auto";
  if (said != out.end()) {
    const std::string meant = meant_value(part, setting, *known);
    // A plan's words are not the framework's.
    const std::string own = wanted_instead(*known, setting.value, reader_of(part, setting));
    if (!own.empty() && !known->choices.empty()) {
      said->message = sentence_of(setting, own);
      said->source = source_of_options(part);
    }
    if (said->fix.empty() && !meant.empty()) said->fix = with_value(scene, setting, meant);
    return;
  }
  if (automatic || is_switch_of_deepspeed(part, setting)) return;
  if (part.dialect == Dialect::accelerate && is_said_by_launch(scene, setting)) return;
  // YAML's NO, which starts one process as the word does (accelerate 16cb6eb8,
  // src/accelerate/commands/launch.py:1222).
  const bool starts_one = part.dialect == Dialect::accelerate &&
                          setting.key == "distributed_type" &&
                          same_value(setting.value, Json(false));
  if (starts_one) return;
  const auto refuse = [&](std::string wanted, Correction fix) {
    out.push_back({Severity::error, "refused_value", setting.place, sentence_of(setting, wanted),
                   "", source_of_options(part), std::move(fix)});
  };
  if (is_list_of_scalar(part, *known, setting)) return refuse("one value, and no list", {});
  if (!setting.extra.empty() && takes_no_others(part) && is_placeholder(setting)) {
    out.push_back({Severity::note, "placeholder", setting.place,
                   fmt::format("{} has words that are to be replaced: {} {}", setting.key,
                               shown(text_of(setting.value)), shown(setting.extra)),
                   "", "qplan: words of an example, not of a job"});
  } else if (!setting.extra.empty() && takes_no_others(part)) {
    out.push_back({Severity::error,
                   "stray_word",
                   setting.place,
                   fmt::format("{} takes {}, and {} behind it is an argument that nobody knows",
                               setting.key, values_of_arity(known->arity), shown(setting.extra)),
                   "leave it out",
                   "Python 3, Lib/argparse.py (unrecognized arguments)",
                   {}});
  }
  const bool flag = setting.value.is_boolean(), argument = setting.key.starts_with("--");
  // What the Trainer's parser wants in words, a YAML may say as it is.
  if (part.dialect == Dialect::automodel && lower_case(text_of(setting.value)) == "none") return;
  if (part.dialect == Dialect::llama_factory || part.dialect == Dialect::axolotl ||
      part.dialect == Dialect::automodel || part.dialect == Dialect::torchtune) {
    const bool no =
        setting.value.is_boolean() && !known->choices.empty() && known->choices.front() == "no";
    if (setting.value.is_structured() || known->type == "dict" || known->type == "str" || no)
      return;
  } else if (known->arity == "0" && !flag) {
    const std::string word = text_of(setting.value);
    const bool off = same_value(word, "false");
    return refuse("given without a value", off ? removed(scene, part, setting)
                                           : same_value(word, "true")
                                               ? replaced(scene, setting, setting.key)
                                               : Correction{});
  }
  if (flag && argument && is_of_command(part, setting)) {
    if (known->arity == "1" || known->arity == "+") refuse("followed by a value", {});
    return;
  }
  if (argument && is_of_command(part, setting) && is_number(known->arity) && known->arity > "1" &&
      fmt::format("{}", list_of(setting.value).size()) != known->arity) {
    return refuse("followed by " + values_of_arity(known->arity), {});
  }
  const bool several = setting.value.is_array() && known->type != "list";
  if (several && !argument && (known->type == "int" || known->type == "float")) {
    return refuse("a number", {});
  }
  const auto values = several ? setting.value : Json::array({setting.value});
  for (const Json& value : values) {
    const std::string wanted = wanted_instead(*known, value, reader_of(part, setting));
    if (wanted.empty()) continue;
    if (Correction typed = as_typed(part, *known, setting); !typed.empty()) {
      return refuse(wanted, std::move(typed));
    }
    const std::string meant = meant_value(part, setting, *known);
    return refuse(wanted, meant.empty() ? in_digits(scene, *known, setting)
                                        : with_value(scene, setting, meant));
  }
}

std::string source_of_options(const ConfigPart& part) {
  return fmt::format("qplan: planner/frameworks/options/{}.tsv, the options of its parser",
                     option_list_of(part.dialect));
}

}  // namespace qplan
