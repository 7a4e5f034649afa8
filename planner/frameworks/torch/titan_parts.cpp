#include "planner/frameworks/torch/titan_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "models/edit_distance.h"
#include "models/text.h"
#include "planner/frameworks/option_value.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

using enum Severity;

constexpr std::string_view kPartSource =
    "qplan: planner/frameworks/options/torchtitan_names.tsv, what torchtitan b5bcd76c defines";

// A value of another type or word than a field of torchtitan's takes.
void check_value_of_part(const std::string& field, const PythonArgument& a, Findings& out) {
  const KnownOption* const known = known_options("torchtitan_names").find(field);
  if (known == nullptr || !a.resolved || a.value.is_null() || a.value.is_structured()) return;
  const std::string wanted = wanted_instead(*known, a.value, ValueReader::python);
  if (wanted.empty()) return;
  const std::string meant = certain_choice(text_of(a.value), known->choices);
  const bool quoted = a.text.size() == text_of(a.value).size() + 2;
  Correction fix;
  if (!meant.empty() && quoted) {
    fix = Correction{{a.place.file, a.span.begin, a.span.end,
                      a.text.substr(0, 1) + meant + a.text.substr(0, 1)}};
  }
  out.push_back({error, "refused_value", a.place,
                 fmt::format("{} must be {}, not {}", field, wanted, shown(a.text)),
                 meant.empty() ? "" : fmt::format("did you mean {}?", meant),
                 std::string(kPartSource), std::move(fix)});
}

// The class of "a.b.CheckpointManager.Config(...)"; empty: it is no call of that kind.
std::string class_of_part(const std::string& callee) {
  constexpr std::string_view kConfig = ".Config";
  if (!callee.ends_with(kConfig)) return "";
  const std::string owner = callee.substr(0, callee.size() - kConfig.size());
  return owner.substr(owner.rfind('.') + 1);  // npos + 1: all of it
}

// Trainer.Config(model_spec=..., training=...), CheckpointManager.Config(interval=500)
void check_fields_of_parts(const std::string& file, const PythonText& text, Findings& out) {
  for (const PythonCall& call : text.calls) {
    const std::string part = class_of_part(call.callee);
    const bool own = part.empty() || file.find(fmt::format("class {}", part)) != std::string::npos;
    const std::string section = part + ".Config.";
    const auto names = own ? std::vector<std::string>() : titan_names_under(section);
    if (names.empty()) continue;
    for (const PythonArgument& argument : call.arguments) {
      if (argument.name.empty()) continue;
      if (std::find(names.begin(), names.end(), argument.name) != names.end()) {
        check_value_of_part(section + argument.name, argument, out);
        continue;
      }
      const std::array<const OptionList*, 1> lists{&known_options("torchtitan_names")};
      const std::string certain = certain_name(section + argument.name, lists);
      Correction fix;
      if (certain.starts_with(section) && call.find(certain.substr(section.size())) == nullptr) {
        fix = Correction{{argument.place.file, argument.name_span.begin, argument.name_span.end,
                          certain.substr(section.size())}};
        fix.renames = true;
      }
      out.push_back({error, "unknown_option", argument.place,
                     fmt::format("{}.Config has no field {}, and torchtitan stops", part,
                                 shown(argument.name)),
                     fix.empty() ? nearest_text(argument.name, names)
                                 : fmt::format("did you mean {}?", fix.front().text),
                     std::string(kPartSource), std::move(fix)});
    }
  }
}

// "CheckpointManager.Confiig(...)": a class of torchtitan's, and no Config of it.
void check_names_of_parts(const std::string& file, const PythonText& text, Findings& out) {
  constexpr std::string_view kConfig = "Config";
  for (const PythonCall& call : text.calls) {
    const std::size_t dot = call.callee.rfind('.');
    if (dot == std::string::npos) continue;
    const std::string last = call.callee.substr(dot + 1), owners = call.callee.substr(0, dot);
    const std::string part = owners.substr(owners.rfind('.') + 1);  // npos + 1: all of it
    const bool slip = edit_distance(last, kConfig) <= 1 || lower_case(last) == lower_case(kConfig);
    const bool own = file.find(fmt::format("class {}", part)) != std::string::npos;
    if (last == kConfig || !slip || own || titan_names_under(part + ".Config.").empty()) continue;
    Correction fix;
    if (call.name_span.end - call.name_span.begin == call.callee.size()) {
      fix = Correction{{call.place.file, call.name_span.end - last.size(), call.name_span.end,
                        std::string(kConfig)}};
      fix.renames = true;
    }
    out.push_back({error, "unknown_option", call.place,
                   fmt::format("{} has no {}, and Python stops", part, shown(last)),
                   fmt::format("did you mean {}.Config?", part), std::string(kPartSource),
                   std::move(fix)});
  }
}

// What other names of a configuration take: words, keywords, and what makes one.
void check_words_of_titan(const PythonText& text, Findings& out) {
  const auto refuse = [&](const PythonArgument& a, std::string_view rule, std::string message,
                          std::string instead, std::string_view source, Correction fix = {}) {
    out.push_back({error, std::string(rule), a.place, std::move(message), std::move(instead),
                   std::string(source), std::move(fix)});
  };
  for (const PythonCall& call : text.calls) {
    const std::string callee = call.callee.substr(call.callee.rfind('.') + 1);
    for (const PythonArgument& a : call.arguments) {
      if (callee == "default_adamw" && a.name == "learning_rate") {
        Correction fix{{a.place.file, a.name_span.begin, a.name_span.end, "lr"}};
        fix.renames = true;
        refuse(a, "unknown_option",
               "default_adamw hands learning_rate to AdamW, which takes none: Python stops",
               "did you mean lr?",
               "torchtitan b5bcd76c, torchtitan/components/optimizer/optimizer.py:378",
               std::move(fix));
      }
      const bool backend = callee == "model_registry" && a.name == "attn_backend";
      if (backend && a.resolved && a.value.is_string()) {
        const std::vector<std::string> words{"flex", "flex_flash", "varlen"};
        const auto word = a.value.get<std::string>();
        const std::string meant = certain_choice(word, words);
        if (std::find(words.begin(), words.end(), word) == words.end()) {
          refuse(a, "refused_value",
                 fmt::format("attn_backend is {}, and must be one of {}", shown(word),
                             fmt::join(words, ", ")),
                 meant.empty() ? "" : fmt::format("did you mean {}?", meant),
                 "torchtitan b5bcd76c, torchtitan/models/common/config_utils.py:71");
        }
      }
      // activation_checkpoint=FullAC, without its .Config().
      if (a.name == "activation_checkpoint" && (a.text == "FullAC" || a.text == "SelectiveAC")) {
        refuse(
            a, "refused_value",
            fmt::format("activation_checkpoint is the class {}, and must be a configuration of it",
                        a.text),
            fmt::format("{}.Config()", a.text),
            "torchtitan b5bcd76c, torchtitan/distributed/activation_checkpoint.py",
            Correction{{a.place.file, a.span.begin, a.span.end, a.text + ".Config()"}});
      }
    }
  }
}

}  // namespace

std::vector<std::string> titan_names_under(std::string_view prefix) {
  std::vector<std::string> names;
  for (const std::string& name : known_options("torchtitan_names").names()) {
    if (name.starts_with(prefix)) names.push_back(name.substr(prefix.size()));
  }
  return names;
}

std::string nearest_text(const std::string& name, const std::vector<std::string>& names) {
  const std::string near = nearest_name(name, names);
  return near.empty() ? "" : fmt::format("did you mean {}?", near);
}

void check_titan_parts(const std::string& file, const PythonText& text, Findings& out) {
  check_names_of_parts(file, text, out);
  check_fields_of_parts(file, text, out);
  check_words_of_titan(text, out);
}

}  // namespace qplan
