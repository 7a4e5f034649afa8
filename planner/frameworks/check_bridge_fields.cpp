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
                             "Python stops{}",
                             shown(section),
                             meant.empty() ? " where the release that runs has none either" : ""),
                 meant.empty() ? "" : fmt::format("did you mean {}?", meant),
                 std::string(kFieldSource),
                 {}});
}

}  // namespace

void check_fields_of_bridge(const PythonText& text, Findings& out) {
  const OptionList& fields = known_options("bridge_fields");
  std::set<std::string> configurations;  // names of variables whose sections are known
  for (const PythonAssignment& assignment : text.assignments) {
    const std::size_t dot = assignment.target.find('.');
    if (dot == std::string::npos) continue;
    const std::string field = assignment.target.substr(dot + 1);
    if (field.find('.') != std::string::npos &&
        fields.find(field.substr(0, field.find('.'))) != nullptr) {
      configurations.insert(assignment.target.substr(0, dot));
    }
  }
  for (const PythonAssignment& assignment : text.assignments) {
    const std::size_t dot = assignment.target.find('.');
    if (dot == std::string::npos) continue;
    const std::string root = assignment.target.substr(0, dot);
    const std::string field = assignment.target.substr(dot + 1);
    if (const KnownOption* const known = fields.find(field); known != nullptr) {
      if (configurations.contains(root)) check_field_value(*known, assignment.value, field, out);
      continue;
    }
    const std::size_t inner = field.find('.');
    if (inner == std::string::npos) continue;
    const std::string section = field.substr(0, inner), name = field.substr(inner + 1);
    std::string near = slip_of_key(field, fields);
    if (near.empty() && fields.find(section) == nullptr && configurations.contains(root) &&
        !section.starts_with('_')) {
      check_section(text, assignment, root, section, out);
      continue;
    }
    if (near.empty()) {
      // It may be a newer version's; of the model's fields, which grow by the week, those are told
      // that leave out words of one that is there.
      const std::string meant = with_more_words(field, fields);
      const bool of_section = fields.find(section) != nullptr && configurations.contains(root) &&
                              name.find('.') == std::string::npos && !name.starts_with('_');
      if (!of_section || (section == "model" && meant.empty())) continue;
      out.push_back({warning,
                     "unknown_option",
                     assignment.value.place,
                     fmt::format("{} of Megatron-Bridge 067f987d has no field {}: it is set, and "
                                 "nobody reads it where the release that runs has none either",
                                 section, shown(name)),
                     meant.empty() ? "" : fmt::format("did you mean {}?", meant),
                     std::string(kFieldSource),
                     {}});
      continue;
    }
    std::string message;
    if (fields.find(section) != nullptr) {
      near.erase(0, inner + 1);
      message =
          fmt::format("{} has no field {}: it is set, and nobody reads it", section, shown(name));
    } else if (configurations.contains(root)) {
      message = fmt::format("{} has no section {}, and Python stops", root, shown(section));
    } else {
      continue;
    }
    out.push_back({error,
                   "unknown_option",
                   assignment.value.place,
                   message,
                   fmt::format("did you mean {}?", near),
                   std::string(kFieldSource),
                   {}});
  }
}

}  // namespace qplan
