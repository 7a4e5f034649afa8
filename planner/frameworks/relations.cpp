#include "planner/frameworks/relations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/relation_tables.h"
#include "planner/frameworks/trainer_relations.h"

namespace qplan {
namespace {

// ---- terms ----

std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(trimmed(text.substr(0, at)));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

struct Term {
  bool negated = false;
  std::string_view flag, op, value;  // op: empty: given
};

Term term_of(std::string_view text) {
  Term term;
  if (text.starts_with('!')) {
    term.negated = true;
    text.remove_prefix(1);
  }
  const std::size_t at = text.find_first_of("=!<>%");
  term.flag = text.substr(0, at);
  if (at == std::string_view::npos) return term;
  const std::size_t length = at + 1 < text.size() && text[at + 1] == '=' ? 2 : 1;
  term.op = text.substr(at, length);
  term.value = text.substr(at + length);
  return term;
}

// The name that older releases of transformers have for an option (training_args.py).
constexpr std::array<std::pair<std::string_view, std::string_view>, 1> kOlderNames{
    {{"--eval_strategy", "--evaluation_strategy"}}};

class Terms {
 public:
  Terms(const Scene& scene, const ConfigPart& part)
      : scene_(scene),
        part_(part),
        list_(known_options(option_list_of(part.dialect))),
        other_(known_options("megatron")) {}

  // Nothing: only a run can tell.
  [[nodiscard]] std::optional<bool> holds(std::string_view text) const {
    const Term term = term_of(text);
    if (term.op.empty()) {
      const Setting* const found = said(term.flag);
      if (found != nullptr && !found->resolved && !is_given_somehow(*found)) return std::nullopt;
      const bool elsewhere = found == nullptr && !term.negated && is_on_elsewhere(term.flag);
      const bool given = (found != nullptr && !is_off(*found)) || elsewhere;
      return given != term.negated;
    }
    const auto values = values_of(term.flag);
    if (!values) return std::nullopt;
    if (term.op == "=" || term.op == "!=") {
      const auto wanted = parts_of(term.value, ',');
      const bool any = std::any_of(values->begin(), values->end(), [&](const std::string& v) {
        return std::find(wanted.begin(), wanted.end(), v) != wanted.end();
      });
      return any == (term.op == "=");
    }
    if (values->empty()) return false;  // nothing is no number of any size
    const auto left = number(*values);
    const auto right =
        term.value.starts_with("--") ? other_number(term.value) : number({std::string(term.value)});
    if (!left || !right) return std::nullopt;
    if (term.op == "%") return *right == 0 || std::fmod(*left, *right) == 0;
    if (term.op == ">") return *left > *right;
    if (term.op == ">=") return *left >= *right;
    if (term.op == "<") return *left < *right;
    return *left <= *right;
  }

  // Whether the arguments describe the model, as those of a whole job do.
  [[nodiscard]] bool is_whole() const {
    return part_.dialect == Dialect::trainer || is_said_elsewhere("--num-layers") ||
           is_said_elsewhere("--hidden-size");
  }

  [[nodiscard]] const Setting* find(std::string_view text) const {
    return said(term_of(text).flag);
  }

 private:
  // By its name, or its older one.
  [[nodiscard]] const Setting* said(std::string_view flag) const {
    if (const Setting* const found = part_.settings.find(flag)) return found;
    for (const auto& [name, older] : kOlderNames) {
      if (name == flag && part_.dialect == Dialect::trainer) return part_.settings.find(older);
    }
    return nullptr;
  }

  // An array of arguments may leave to another what it needs.
  [[nodiscard]] bool is_said_elsewhere(std::string_view flag) const {
    return std::any_of(scene_.files.parts.begin(), scene_.files.parts.end(),
                       [&](const ConfigPart& p) { return p.settings.has(flag); });
  }

  [[nodiscard]] bool is_on_elsewhere(std::string_view flag) const {
    return std::any_of(scene_.files.parts.begin(), scene_.files.parts.end(),
                       [&](const ConfigPart& p) {
                         const Setting* const found = p.settings.find(flag);
                         return found != nullptr && !is_off(*found);
                       });
  }

  static bool is_off(const Setting& setting) {
    return same_value(setting.value, Json(false)) || text_of(setting.value) == "None";
  }

  // As given, or the parser's default; empty: it has none.
  [[nodiscard]] std::optional<std::vector<std::string>> values_of(std::string_view flag) const {
    const Setting* const found = said(flag);
    if (found != nullptr) {
      if (!found->resolved) return std::nullopt;
      return list_of(found->value);
    }
    if (is_said_elsewhere(flag)) return std::nullopt;
    const KnownOption* known = list_.find(flag);
    if (known == nullptr && part_.dialect == Dialect::slime) known = other_.find(flag);
    if (known == nullptr) return std::nullopt;
    if (known->otherwise == "None" || known->otherwise.empty()) return std::vector<std::string>{};
    return std::vector<std::string>{known->otherwise};
  }

  static std::optional<double> number(const std::vector<std::string>& values) {
    if (values.size() != 1) return std::nullopt;
    try {
      return number_of(Json(values.front()));
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  [[nodiscard]] std::optional<double> other_number(std::string_view flag) const {
    const auto values = values_of(flag);
    return values ? number(*values) : std::nullopt;
  }

  const Scene& scene_;
  const ConfigPart& part_;
  const OptionList &list_, &other_;
};

// "--a", "--a x", "--a above 0", "no --a".
std::string words_of(std::string_view text) {
  const Term term = term_of(text);
  const std::string flag(term.flag);
  if (term.op.empty()) return term.negated ? "no " + flag : flag;
  if (term.op == "=" || term.op == "!=") {
    const std::string list = fmt::format("{}", fmt::join(parts_of(term.value, ','), " or "));
    return fmt::format("{}{} {}", flag, term.op == "=" ? "" : " other than", list);
  }
  const std::string_view word = term.op == "%"    ? "a multiple of"
                                : term.op == ">"  ? "above"
                                : term.op == ">=" ? "of at least"
                                : term.op == "<"  ? "below"
                                                  : "of at most";
  return fmt::format("{} {} {}", flag, word, term.value);
}

std::string_view source_of(Dialect dialect) {
  if (dialect == Dialect::slime) return "slime 624b824a";
  if (dialect == Dialect::trainer) return "transformers 5.23.0";
  return dialect == Dialect::megatron_deepspeed ? "Megatron-DeepSpeed 4efb479d"
                                                : "Megatron-LM d98e8a64";
}

void check_relation(const ConfigPart& part, Dialect whose, const Terms& terms,
                    const Relation& relation, Findings& out) {
  const auto conditions = parts_of(relation.when, '&');
  for (const std::string_view condition : conditions) {
    if (terms.holds(condition) != std::optional(true)) return;
  }
  const auto wanted = parts_of(relation.must, '|');
  // Where the model is not described, a file is missing that may say more than the model.
  const Term first_wanted = term_of(wanted.front());
  const bool of_itself = relation.when.find(first_wanted.flag) != std::string_view::npos;
  if (!first_wanted.negated && !of_itself && !terms.is_whole()) return;
  for (const std::string_view term : wanted) {
    if (terms.holds(term) != std::optional(false)) return;
  }
  std::vector<std::string> when, must;
  for (const std::string_view term : conditions) when.push_back(words_of(term));
  for (const std::string_view term : wanted) must.push_back(words_of(term));
  const Term& first = first_wanted;
  const bool excludes = first.negated;
  const Setting* at = terms.find(conditions.front());
  if (excludes || at == nullptr) {
    if (const Setting* const other = terms.find(wanted.front())) at = other;
  }
  // "--a must be below --b with --c": what is compared with, and what is not given, goes without
  // saying.
  const Term asked = term_of(conditions.front());
  const bool asks_itself = !excludes && asked.op.empty() && asked.flag == first.flag;
  std::string beside;
  for (std::size_t i = 1; asks_itself && i < conditions.size(); ++i) {
    const bool understood = conditions[i].starts_with('!') || conditions[i] == first.value;
    if (!understood) beside += " with " + when[i];
  }
  const std::string sentence =
      excludes ? fmt::format("{} and {} exclude each other", fmt::join(when, " with "), first.flag)
      : asks_itself
          ? fmt::format("{} must be {}{}", first.flag,
                        words_of(wanted.front()).substr(first.flag.size() + 1), beside)
          : fmt::format("{} needs {}", fmt::join(when, " with "), fmt::join(must, ", or "));
  out.push_back({Severity::error,
                 excludes ? "options_exclude" : "option_needs",
                 at != nullptr ? at->place : part.place,
                 relation.why.empty() ? sentence : fmt::format("{}: {}", sentence, relation.why),
                 excludes ? "keep one of them" : fmt::format("write {}", must.front()),
                 fmt::format("{}, {}", source_of(whose), relation.source),
                 {}});
}

}  // namespace

bool is_given_somehow(const Setting& setting) {
  const bool option = setting.syntax == Syntax::words ||
                      (setting.syntax == Syntax::yaml && setting.key.starts_with("--"));
  return setting.there && option && setting.value.is_string();
}

std::span<const Relation> relations_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::megatron:
      return kMegatronRelations;
    case Dialect::slime:
      return kSlimeRelations;
    case Dialect::megatron_deepspeed:
      return kForkRelations;
    case Dialect::trainer:
      return kTrainerRelations;
    case Dialect::megatron_yaml:
    case Dialect::bridge:
    case Dialect::ds_config:
    case Dialect::accelerate:
    case Dialect::torchtitan:
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
  return {};
}

void check_relations(const Scene& scene, Findings& out) {
  for (const ConfigPart& part : scene.files.parts) {
    // What Megatron-LM's own script checks of its flags, nobody checks of ms-swift's arguments.
    const bool of_swift = part.derived && part.dialect == Dialect::megatron;
    if (relations_of(part.dialect).empty() || of_swift) continue;
    const Terms terms(scene, part);
    for (const Relation& relation : relations_of(part.dialect)) {
      check_relation(part, part.dialect, terms, relation, out);
    }
    if (part.dialect != Dialect::slime) continue;
    // slime runs Megatron's validation as well, though not its loop, and has the distributed
    // optimizer on by itself.
    for (const Relation& relation : kMegatronRelations) {
      const bool on = relation.must.find("--use-distributed-optimizer") != std::string_view::npos;
      const bool of_loop = relation.source.starts_with("megatron/training/training.py");
      if (!on && !of_loop) check_relation(part, Dialect::megatron, terms, relation, out);
    }
  }
}

}  // namespace qplan
