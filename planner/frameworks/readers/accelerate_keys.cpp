#include "planner/frameworks/readers/accelerate_keys.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "models/ascii.h"
#include "models/edit_distance.h"
#include "planner/frameworks/option.h"
#include "planner/frameworks/slips.h"

namespace qplan {
namespace {

constexpr std::string_view kType = "distributed_type";
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kSections{
    {{"deepspeed_config.", "DEEPSPEED"},
     {"fsdp_config.", "FSDP"},
     {"megatron_lm_config.", "MEGATRON_LM"}}};

const OptionList& names() {
  return known_options("accelerate");
}

// Among the outermost names alone, or in a section where its line is indented.
const Setting* said_type(const Settings& yaml) {
  if (const Setting* const said = yaml.find(kType)) return said;
  for (const Setting& setting : yaml) {
    const std::size_t dot = setting.key.rfind('.');
    const std::string name = setting.key.substr(dot == std::string::npos ? 0 : dot + 1);
    if (dot != std::string::npos && name == kType) return &setting;
    const bool alike = name.size() + 2 >= kType.size() && name.size() <= kType.size() + 2;
    if (dot != std::string::npos || !alike || names().find(name) != nullptr) continue;
    const std::array<const OptionList*, 1> lists{&names()};
    if (certain_name(name, lists) == kType) return &setting;
  }
  return nullptr;
}

// "multi-gpu," as "MULTIGPU".
std::string bare(std::string_view word) {
  std::string letters;
  for (const char c : word) {
    if (is_digit(c) || (c >= 'A' && c <= 'Z')) letters += c;
    if (c >= 'a' && c <= 'z') letters += static_cast<char>(c - 'a' + 'A');
  }
  return letters;
}

// Those that are spelled alike but for signs and case; else those that are one letter away.
std::vector<std::string> types_like(const std::string& written) {
  const std::vector<std::string>& types = names().find(kType)->choices;
  const std::string word = bare(written);
  for (const std::size_t most : {std::size_t{0}, std::size_t{1}}) {
    if (most > 0 && word.size() < 3) break;
    std::vector<std::string> alike;
    std::copy_if(types.begin(), types.end(), std::back_inserter(alike),
                 [&](const auto& type) { return edit_distance(word, bare(type)) <= most; });
    if (!alike.empty()) return alike;
  }
  return {};
}

std::vector<std::string> types_of_sections(const Settings& yaml) {
  std::vector<std::string> types;
  for (const auto& [section, type] : kSections) {
    const bool holds = std::any_of(yaml.begin(), yaml.end(), [&](const Setting& setting) {
      return setting.key.starts_with(section) && !setting.key.ends_with(kType);
    });
    if (holds) types.emplace_back(type);
  }
  return types;
}

std::string meant_type(const Settings& yaml, const Setting* said) {
  const std::vector<std::string>& types = names().find(kType)->choices;
  std::vector<std::string> alike;
  if (said != nullptr) {
    // YAML's NO.
    if (same_value(said->value, Json(false))) return "NO";
    const std::string written = text_of(said->value);
    if (std::find(types.begin(), types.end(), written) != types.end()) return written;
    alike = types_like(written);
  }
  const std::vector<std::string> sections = types_of_sections(yaml);
  if (alike.empty()) return sections.size() == 1 ? sections.front() : "";
  if (!sections.empty()) {
    std::erase_if(alike, [&](const std::string& type) {
      return std::find(sections.begin(), sections.end(), type) == sections.end();
    });
  }
  return alike.size() == 1 ? alike.front() : "";
}

}  // namespace

DistributedType distributed_type_of(const Settings& yaml) {
  const Setting* const said = said_type(yaml);
  return {said, meant_type(yaml, said)};
}

bool is_read_type(const std::string& distributed_type) {
  constexpr std::array<std::string_view, 4> kRead{"NO", "MULTI_GPU", "DEEPSPEED", "FSDP"};
  return std::find(kRead.begin(), kRead.end(), distributed_type) != kRead.end();
}

Settings with_whole_names(const Settings& yaml) {
  constexpr std::string_view kSection = "fsdp_config.", kBegin = "fsdp", kPrefix = "fsdp_";
  Settings whole;
  for (Setting setting : yaml) {
    const bool bare_name = setting.key.starts_with(kSection) &&
                           setting.key.compare(kSection.size(), kBegin.size(), kBegin) != 0 &&
                           !setting.key.ends_with(kType);
    if (bare_name) setting.key.insert(kSection.size(), kPrefix);
    whole.add(std::move(setting));
  }
  return whole;
}

}  // namespace qplan
