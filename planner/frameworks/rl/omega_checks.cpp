#include "planner/frameworks/rl/omega_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/edit_distance.h"
#include "models/error.h"
#include "models/text.h"
#include "planner/frameworks/option_value.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

constexpr std::string_view kHydraFlags =
    "qplan: planner/frameworks/options/hydra.tsv, the flags of hydra-core 1.3.2's parser";

// What another key says, or what has to be said yet.
bool is_reference_to(const Json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return text.find("${") != std::string::npos || text == "???";
}

// How often something is done, which verl compares with 0: False is never (b178a3cd,
// verl/trainer/ppo/ray_trainer.py:1624).
bool is_never(const KnownOption& known, const Json& value) {
  return value.is_boolean() && known.spellings.front().ends_with("_freq");
}

std::string wanted_of(const KnownOption& known, const Json& value) {
  if (value.is_structured() || is_reference_to(value) || is_never(known, value)) return "";
  return wanted_instead(known, value, ValueReader::yaml);
}

// Whether a word is written for one of these: up to two letters away, of a short one a single one.
bool is_near(const std::string& word, const std::vector<std::string>& choices) {
  return std::any_of(choices.begin(), choices.end(), [&](const std::string& choice) {
    return edit_distance(lower_case(word), lower_case(choice)) <= (word.size() > 4 ? 2 : 1);
  });
}

}  // namespace

void check_omega_values(const Scene& scene, const ConfigPart& part, const OptionList& list,
                        bool choices, std::string_view release, std::string_view source,
                        Findings& out) {
  for (const Setting& setting : part.settings) {
    const KnownOption* const known = list.find(setting.key);
    if (known == nullptr || !setting.resolved || part.settings.find(setting.key) != &setting) {
      continue;
    }
    if (!choices && !known->choices.empty()) continue;
    const std::string wanted = wanted_of(*known, setting.value);
    if (wanted.empty()) continue;
    const std::string text = text_of(setting.value);
    // The plan's word that it stands for refuses it as well, by the name of Megatron's flag.
    std::erase_if(out, [&](const Finding& finding) {
      return finding.rule == "bad_value" && finding.place.file == setting.place.file &&
             finding.place.line == setting.place.line &&
             finding.message.find(shown(text)) != std::string::npos;
    });
    const std::vector<std::string> truths{"true", "false"};
    const std::string meant =
        certain_choice(lower_case(text), known->type == "bool" ? truths : known->choices);
    const bool later = !release.empty() && setting.value.is_string() && !known->choices.empty() &&
                       meant.empty() && !is_near(text, known->choices);
    if (later) {
      out.push_back({Severity::warning,
                     "refused_value",
                     setting.place,
                     fmt::format("{} is {}, and {} takes {}: the one that runs may take more",
                                 setting.key, shown(text), release, wanted),
                     "",
                     std::string(source),
                     {}});
      continue;
    }
    out.push_back({Severity::error, "refused_value", setting.place,
                   fmt::format("{} is {}, and must be {}", setting.key, shown(text), wanted), "",
                   std::string(source),
                   meant.empty() ? Correction{} : with_value(scene, setting, meant)});
  }
}

bool lacks_parent(const Findings& out) {
  return std::any_of(out.begin(), out.end(),
                     [](const Finding& f) { return f.rule == "config_missing"; });
}

Correction renamed_section(const Scene& scene, const SectionSlip& slip) {
  Correction none;
  none.why_not = "its name does not stand in the file in one piece";
  const Setting& first = *slip.first;
  const std::string* const file = scene.find_text(first.place.file);
  if (file == nullptr || first.syntax != Syntax::yaml) return none;
  const std::string& text = *file;
  const std::string written = slip.written.substr(slip.written.rfind('.') + 1);
  const std::string real = slip.real.substr(slip.real.rfind('.') + 1);
  if (slip.written.substr(0, slip.written.size() - written.size()) !=
      slip.real.substr(0, slip.real.size() - real.size())) {
    return none;
  }
  // Upwards from what stands in it: the line that begins with its name, further left.
  const auto indent_of = [&](std::size_t line) {
    return text.find_first_not_of(" -", line) - line;
  };
  std::size_t line = text.rfind('\n', first.name.begin) + 1;  // npos + 1: the first
  for (const std::size_t inner = indent_of(line); line > 0;) {
    line = line < 2 ? 0 : text.rfind('\n', line - 2) + 1;
    const std::size_t name = line + indent_of(line);
    const bool named = text.compare(name, written.size() + 1, written + ":") == 0;
    if (!named || indent_of(line) >= inner) continue;
    Correction correction{{first.place.file, name, name + written.size(), real}};
    correction.renames = true;
    return correction;
  }
  return none;
}

void check_stray_words(const ConfigPart& part, std::string_view source, Findings& out) {
  const auto stands_alone = [](const Setting& s) { return s.key == kStrayWord && s.resolved; };
  auto at = part.settings.begin();
  while ((at = std::find_if(at, part.settings.end(), stands_alone)) != part.settings.end()) {
    const Place place = at->place;
    // "a.b = c": one mistake in three words.
    std::string words;
    for (; at != part.settings.end() && stands_alone(*at); ++at) {
      words += (words.empty() ? "" : " ") + text_of(at->value);
    }
    out.push_back({Severity::error,
                   "stray_word",
                   place,
                   fmt::format("{} is no override, which has a = and no space around it: Hydra "
                               "stops",
                               shown(words)),
                   "key=value in one word",
                   std::string(source),
                   {}});
  }
}

const KnownOption* hydra_flag(std::string_view name) {
  const OptionList& list = known_options("hydra");
  if (const KnownOption* const found = list.find(name)) return found;
  if (!name.starts_with("--")) return nullptr;
  const KnownOption* only = nullptr;
  for (const std::string& spelling : list.names()) {
    if (!spelling.starts_with(name)) continue;
    if (only != nullptr) return nullptr;
    only = list.find(spelling);
  }
  return only;
}

std::string hydra_name(std::string_view name) {
  const KnownOption* const known = hydra_flag(name);
  return known == nullptr ? std::string(name) : known->spellings.front();
}

void check_hydra_flags(const Scene& scene, const ConfigPart& part, Findings& out) {
  const OptionList& list = known_options("hydra");
  for (const Setting& setting : part.settings) {
    const bool flag = setting.syntax == Syntax::words && setting.key.starts_with('-');
    if (!flag || hydra_flag(setting.key) != nullptr) continue;
    if (setting.key.find('$') != std::string::npos) continue;
    const std::string near = nearest_name(setting.key, list.names());
    const bool slip = setting.key.starts_with("--") && !near.empty() && is_slip(setting.key, near);
    out.push_back({Severity::error, "unknown_option", setting.place,
                   fmt::format("{}: Hydra has no such flag, and stops", setting.key),
                   slip ? fmt::format("did you mean {}?", near) : "leave it out",
                   std::string(kHydraFlags),
                   slip ? with_key(scene, part, setting, near) : Correction{}});
  }
}

}  // namespace qplan
