#include "planner/frameworks/check_bridge_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/megatron/bridge.h"
#include "planner/frameworks/megatron/bridge_keys.h"
#include "planner/frameworks/megatron/bridge_program.h"
#include "planner/frameworks/option_value.h"
#include "planner/frameworks/readers/python_syntax.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

using enum Severity;

constexpr std::string_view kFieldSource =
    "qplan: planner/frameworks/options/bridge_fields.tsv, the fields of Megatron-Bridge 067f987d "
    "and Megatron-LM d98e8a64";

// cfg.train.global_batch_size = "256", cfg.mixed_precision = "bf16_mixd".
void check_field_value(const KnownOption& known, const PythonArgument& value,
                       const std::string& field, Findings& out) {
  Json read = value.value;
  if (!value.resolved || read.is_null() || read.is_array() || read.is_object()) return;
  // "bf16-mixed", too (get_mixed_precision_config).
  if (field == "mixed_precision" && read.is_string()) {
    std::string name = read;
    std::replace(name.begin(), name.end(), '-', '_');
    read = std::move(name);
  }
  const std::string wanted = wanted_instead(known, read, ValueReader::python);
  if (wanted.empty()) return;
  const std::string meant = certain_choice(text_of(read), known.choices);
  out.push_back({error,
                 "refused_value",
                 value.place,
                 fmt::format("{} must be {}, not {}", field, wanted, shown(value.text)),
                 meant.empty() ? "" : fmt::format("did you mean {}?", meant),
                 std::string(kFieldSource),
                 {}});
}

// The one field of a section that begins as `written` does and has its words with others among them
// ("model.tensor_parallel_size": "tensor_model_parallel_size"); empty: none is, or several.
std::string with_more_words(const std::string& written, const OptionList& fields) {
  const std::string section = written.substr(0, written.find('.') + 1);
  std::string found;
  for (const std::string& name : fields.names()) {
    if (!name.starts_with(section) || name.find('.', section.size()) != std::string::npos) continue;
    // Each word of the one is looked for behind the last in the other.
    const std::string words = "_" + name.substr(section.size()) + "_";
    std::size_t at = 0, from = section.size();
    while (at != std::string::npos && from < written.size()) {
      const std::size_t end = std::min(written.find('_', from), written.size());
      const std::string word = "_" + written.substr(from, end - from) + "_";
      at = from == section.size() && !words.starts_with(word) ? std::string::npos
                                                              : words.find(word, at);
      if (at != std::string::npos) at += word.size() - 1;
      from = end + 1;
    }
    if (at == std::string::npos) continue;
    if (!found.empty()) return "";
    found = name.substr(section.size());
  }
  return found;
}

// What NeMo 2 calls a section of a ConfigContainer's (NeMo, nemo/lightning/pytorch); empty:
// nothing.
std::string_view section_of_nemo(std::string_view section) {
  constexpr auto kWords =
      std::to_array<std::pair<std::string_view, std::string_view>>({{"optim", "optimizer"},
                                                                    {"trainer", "train"},
                                                                    {"data", "dataset"},
                                                                    {"log", "logger"},
                                                                    {"lr_scheduler", "scheduler"},
                                                                    {"sched", "scheduler"}});
  const auto* const found = std::find_if(kWords.begin(), kWords.end(),
                                         [&](const auto& word) { return word.first == section; });
  return found == kWords.end() ? std::string_view() : found->second;
}

// What becomes of a name that the configuration has not: by who sets it.
struct Fate {
  std::string_view field, section;
};
Fate fate_of(const std::string& file) {
  if (file.ends_with(".py")) return {"it is set, and nobody reads it", "Python stops"};
  // training/utils/omegaconf_utils.py (_apply_overrides; parse_hydra_overrides)
  if (file.ends_with(".yaml") || file.ends_with(".yml")) {
    return {"it is passed over with a warning", "all of it is passed over with a warning"};
  }
  return {"Hydra stops at it", "Hydra stops at it"};
}

// cfg.optim.lr = 1e-4, cfg.trainer.x: nothing of that name is there to be set in.
void check_section(const PythonText& text, const PythonAssignment& assignment,
                   const std::string& root, const std::string& section, Findings& out) {
  const std::string own = root + "." + section;
  const bool made = std::any_of(text.assignments.begin(), text.assignments.end(),
                                [&](const PythonAssignment& other) {
                                  return other.target == own;  // the program makes it
                                });
  if (made) return;
  const std::string_view meant = section_of_nemo(section);
  out.push_back({meant.empty() ? warning : error,
                 "unknown_option",
                 assignment.value.place,
                 fmt::format("the configuration of Megatron-Bridge 067f987d has no section {}: "
                             "{}{}",
                             shown(section), fate_of(assignment.value.place.file).section,
                             meant.empty() ? " where the release that runs has none either" : ""),
                 meant.empty() ? "" : fmt::format("did you mean {}?", meant),
                 std::string(kFieldSource),
                 {}});
}

// The name alone, where it stands in the file in one piece and the section is right.
Correction renamed(const PythonArgument& value, const std::string& written,
                   const std::string& near) {
  const std::size_t dot = near.rfind('.');
  const bool same = dot != std::string::npos && written.starts_with(near.substr(0, dot + 1));
  if (!same || value.name_span.end <= value.name_span.begin) return {};
  Correction fix{
      {value.place.file, value.name_span.begin, value.name_span.end, near.substr(dot + 1)}};
  fix.renames = true;
  return fix;
}

bool is_python(const Place& place) {
  return place.file.ends_with(".py");
}

class FieldCheck {
 public:
  FieldCheck(const PythonText& text, bool slips_alone, Findings& out)
      : text_(text), slips_alone_(slips_alone), out_(out) {
    for (const PythonAssignment& assignment : text.assignments) {
      const std::size_t dot = assignment.target.find('.');
      if (dot == std::string::npos) continue;
      const std::string field = assignment.target.substr(dot + 1);
      if (field.find('.') != std::string::npos &&
          fields_.find(field.substr(0, field.find('.'))) != nullptr) {
        configurations_.insert(assignment.target.substr(0, dot));
      }
    }
  }

  void check(const PythonAssignment& assignment) {
    const std::size_t dot = assignment.target.find('.');
    if (dot == std::string::npos) return;
    const std::string root = assignment.target.substr(0, dot);
    const std::string field = assignment.target.substr(dot + 1);
    if (const KnownOption* const known = fields_.find(field); known != nullptr) {
      if (configurations_.contains(root)) check_field_value(*known, assignment.value, field, out_);
      return;
    }
    const std::size_t inner = field.find('.');
    if (inner == std::string::npos) return;
    const std::string section = field.substr(0, inner);
    const std::string near = slip_of_key(field, fields_);
    const bool has_section = fields_.find(section) != nullptr;
    if (near.empty() && !has_section && configurations_.contains(root) &&
        !section.starts_with('_')) {
      return check_section(text_, assignment, root, section, out_);
    }
    near.empty() ? warn_of_field(assignment, root, field) : refuse(assignment, root, field, near);
  }

 private:
  // It may be a newer version's; of the model's fields, which grow by the week, those are told
  // that leave out words of one that is there.
  void warn_of_field(const PythonAssignment& assignment, const std::string& root,
                     const std::string& field) {
    const std::size_t inner = field.find('.');
    const std::string section = field.substr(0, inner), name = field.substr(inner + 1);
    const std::string meant = with_more_words(field, fields_);
    const bool of_section = fields_.find(section) != nullptr && configurations_.contains(root) &&
                            name.find('.') == std::string::npos && !name.starts_with('_');
    if (slips_alone_ || !of_section || (section == "model" && meant.empty())) return;
    const Fate fate = fate_of(assignment.value.place.file);
    out_.push_back({warning,
                    "unknown_option",
                    assignment.value.place,
                    fmt::format("{} of Megatron-Bridge 067f987d has no field {}: {} where the "
                                "release that runs has none either",
                                section, shown(name), fate.field),
                    meant.empty() ? "" : fmt::format("did you mean {}?", meant),
                    std::string(kFieldSource),
                    {}});
  }

  void refuse(const PythonAssignment& assignment, const std::string& root, const std::string& field,
              const std::string& near) {
    const std::size_t inner = field.find('.');
    const std::string section = field.substr(0, inner), name = field.substr(inner + 1);
    const Fate fate = fate_of(assignment.value.place.file);
    const bool has_section = fields_.find(section) != nullptr;
    if (!has_section && !configurations_.contains(root)) return;
    out_.push_back(
        {error, "unknown_option", assignment.value.place,
         has_section ? fmt::format("{} has no field {}: {}", section, shown(name), fate.field)
                     : fmt::format("{} has no section {}, and {}",
                                   is_python(assignment.value.place) ? root : "the configuration",
                                   shown(section), fate.section),
         fmt::format("did you mean {}?", has_section ? near.substr(inner + 1) : near),
         std::string(kFieldSource), renamed(assignment.value, field, near)});
  }

  const OptionList& fields_ = known_options("bridge_fields");
  const PythonText& text_;
  bool slips_alone_;
  Findings& out_;
  std::set<std::string> configurations_;  // names of variables whose sections are known
};

// A recipe that a command or a YAML names: one of another release or of one's own is no slip.
void check_named_recipe(const PythonCall& call, Findings& out) {
  const OptionList& recipes = known_options("bridge_recipes");
  const std::string name = call.callee.substr(call.callee.rfind('.') + 1);
  const bool made = name.empty() || (name[0] >= 'A' && name[0] <= 'Z');  // a class
  if (made || known_bridge_recipe(call.callee) != nullptr) return;
  const std::array<const OptionList*, 1> lists{&recipes};
  const bool cut = recipes.find(name + "_config") != nullptr;
  const std::string meant = cut ? name + "_config" : certain_name(name, lists);
  Correction fix;
  if (!meant.empty() && call.name_span.end - call.name_span.begin == name.size()) {
    fix = Correction{{call.place.file, call.name_span.begin, call.name_span.end, meant}};
  }
  out.push_back({meant.empty() ? note : error, "unknown_recipe", call.place,
                 meant.empty()
                     ? fmt::format("Megatron-Bridge 067f987d has no recipe {}: what it sets by "
                                   "itself is not known",
                                   shown(name))
                     : fmt::format("Megatron-Bridge has no recipe {}, and stops", shown(name)),
                 meant.empty() ? "" : fmt::format("did you mean {}?", meant),
                 "qplan: planner/frameworks/options/bridge_recipes.tsv, what Megatron-Bridge "
                 "067f987d defines",
                 std::move(fix)});
}

}  // namespace

void check_fields_of_bridge(const PythonText& text, Findings& out) {
  FieldCheck check(text, /*slips_alone=*/false, out);
  for (const PythonAssignment& assignment : text.assignments) check.check(assignment);
}

void check_bridge_keys(const PythonText& text, bool lenient, Findings& out) {
  FieldCheck check(text, lenient, out);
  // Fields of adapters are their classes'; of data a program of its own may read more.
  const std::vector<std::string_view> open =
      lenient ? std::vector<std::string_view>{"cfg.peft.", "cfg.dataset."}
              : std::vector<std::string_view>{"cfg.peft."};
  for (const PythonAssignment& assignment : text.assignments) {
    const bool is_open = std::any_of(open.begin(), open.end(), [&](std::string_view section) {
      return assignment.target.starts_with(section);
    });
    if (!is_python(assignment.value.place) && !is_open) check.check(assignment);
  }
  for (const PythonCall& call : text.calls) {
    if (!is_python(call.place)) check_named_recipe(call, out);
  }
}

}  // namespace qplan
