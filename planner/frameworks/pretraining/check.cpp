#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "planner/frameworks/option_names.h"
#include "planner/frameworks/pretraining/pretraining.h"

namespace qplan {

namespace {

// Whether the list has the key, or a block that holds any.
bool has_older(const OptionList& older, const std::string& key) {
  const std::string name = without_indices(key);
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    if (older.find(name.substr(0, dot) + ".*") != nullptr) return true;
  }
  return older.find(name) != nullptr;
}

}  // namespace

void note_older(const ConfigPart& part, const OptionList& older, std::string_view today,
                const std::function<std::string(const std::string&)>& now, Findings& out) {
  std::vector<std::string> names, instead;
  const Setting* first = nullptr;
  for (const Setting& setting : part.settings) {
    if (!has_older(older, setting.key)) continue;
    if (first == nullptr) first = &setting;
    names.push_back(setting.key);
    if (const std::string real = now(setting.key); !real.empty()) {
      instead.push_back(fmt::format("{} for {}", real, setting.key));
    }
  }
  if (first == nullptr) return;
  Correction none;
  none.why_not = "the release that the file is for may have them";
  const bool one = names.size() == 1;
  out.push_back(
      {Severity::note, "dropped_option", first->place,
       fmt::format("{}: older releases have {}, and {} stops at {}", fmt::join(names, ", "),
                   one ? "it" : "them", today, one ? "it" : "them"),
       fmt::format("{}", fmt::join(instead, "; ")),
       "qplan: planner/frameworks/options/*_older.tsv, the names of older releases",
       std::move(none)});
}

void check_pretraining(const Scene& scene, Findings& out) {
  check_titan_toml(scene, out);
  check_nanotron(scene, out);
}

}  // namespace qplan
