#include "planner/frameworks/own_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <string>
#include <vector>

namespace qplan {
namespace {

// Of each framework as its repositories are laid out, today's and those of its releases.
constexpr auto kParsers = std::to_array<std::string_view>({
    "megatron/training/arguments.py",
    "megatron/training/config/",
    "megatron/arguments.py",
    "megatron/core/transformer/transformer_config.py",
    "megatron/core/model_parallel_config.py",
    "megatron/core/optimizer/optimizer_config.py",
    "slime/utils/arguments.py",
    "miles/utils/arguments.py",
    "src/llamafactory/hparams/",
    "src/llamafactory/extras/constants.py",
    "src/llmtuner/hparams/",
    "torchtitan/config/",
    "torchtitan/config_manager.py",
    "swift/arguments/",
    "swift/megatron/arguments/",
    "swift/llm/argument/",
    "swift/llm/argument/base_args/",
    "swift/megatron/argument/",
    "nemo_automodel/components/distributed/",
});

constexpr std::size_t kShown = 4;
// How far behind an option's name its choices stand.
constexpr std::size_t kOfOneOption = 800;

bool is_of_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Behind "  name:", a field of a class; npos: there is none.
std::size_t behind_field(std::string_view text, const std::string& name) {
  for (std::size_t at = text.find(name); at != std::string_view::npos;
       at = text.find(name, at + 1)) {
    std::size_t begin = at;
    while (begin > 0 && text[begin - 1] == ' ') --begin;
    const bool first = begin < at && begin > 0 && text[begin - 1] == '\n';
    const std::size_t end = text.find_first_not_of(' ', at + name.size());
    if (first && end != std::string_view::npos && text[end] == ':') return end;
  }
  return std::string_view::npos;
}

// Behind "--name" in quotes.
std::size_t behind_argument(std::string_view text, std::string_view name) {
  for (const char quote : {'"', '\''}) {
    const std::string quoted = fmt::format("{0}{1}{0}", quote, name);
    const std::size_t at = text.find(quoted);
    if (at != std::string_view::npos) return at + quoted.size();
  }
  return std::string_view::npos;
}

// Where a parser has an option: "--trigger-path", "training.shuffle_seed", "reasoning_loss_weight".
std::size_t behind_option(std::string_view text, const std::string& written) {
  const std::string bare = written.starts_with("--") ? written.substr(2) : written;
  for (const std::string& name : {fmt::format("--{}", bare), bare}) {
    const std::size_t argument = behind_argument(text, name);
    if (name.starts_with("--") && argument != std::string_view::npos) return argument;
  }
  std::string field = bare.substr(bare.rfind('.') + 1);  // npos + 1: whole
  std::replace(field.begin(), field.end(), '-', '_');
  if (field.size() < 2 || !std::all_of(field.begin(), field.end(), is_of_name)) {
    return std::string_view::npos;
  }
  return behind_field(text, field);
}

bool has_option(const ConfigText& copy, const std::string& name) {
  return behind_option(copy.text, name) != std::string_view::npos;
}

// "advantage_estimator is trloo, and must be one of grpo, ...".
struct RefusedWord {
  std::string option, word;
};
RefusedWord refused_word(const Finding& finding) {
  constexpr std::string_view kIs = " is ", kChoices = ", and must be one of ";
  const std::size_t choices = finding.message.find(kChoices);
  const std::size_t is = finding.message.find(kIs);
  if (finding.rule != "refused_value" || choices == std::string::npos || is >= choices) return {};
  const std::size_t begin = is + kIs.size();
  return {finding.message.substr(0, is), finding.message.substr(begin, choices - begin)};
}

// Whether the option's own choices, or an enumeration beside it, have the word.
bool has_word(const ConfigText& copy, const RefusedWord& refused) {
  const std::string_view text = copy.text;
  const std::size_t option = behind_option(text, refused.option);
  if (option != std::string_view::npos &&
      behind_argument(text.substr(option, kOfOneOption), refused.word) != std::string_view::npos) {
    return true;
  }
  return text.find(fmt::format(" = \"{}\"\n", refused.word)) != std::string_view::npos;
}

// Its name of a finding: what stands before the colon or the first blank.
std::string name_in(const Finding& finding) {
  return finding.message.substr(0, finding.message.find_first_of(": "));
}

std::string listed(const std::vector<std::string>& names) {
  if (names.size() <= kShown) return fmt::format("{}", fmt::join(names, ", "));
  const std::vector<std::string> first(names.begin(), names.begin() + kShown);
  return fmt::format("{} and {} more", fmt::join(first, ", "), names.size() - kShown);
}

// torchtitan's own programs import its modules as they are there.
void leave_imports(std::span<const ConfigText* const> copies, std::vector<Finding>& findings) {
  const bool copy = std::any_of(copies.begin(), copies.end(), [](const ConfigText* text) {
    return text->name.find("torchtitan/") != std::string::npos;
  });
  for (Finding& finding : findings) {
    if (!copy || finding.rule != "unknown_import" || !finding.message.starts_with("torchtitan")) {
      continue;
    }
    finding.severity = Severity::note;
    finding.message += ", unless the copy that the file stands in has it";
    finding.fix.clear();
  }
}

}  // namespace

std::span<const std::string_view> files_of_parsers() {
  return kParsers;
}

bool is_parser(const ConfigText& file) {
  return std::any_of(kParsers.begin(), kParsers.end(), [&](std::string_view parser) {
    const std::size_t at = file.name.rfind(parser);
    if (at == std::string::npos || (at > 0 && file.name[at - 1] != '/')) return false;
    const std::string_view rest = std::string_view(file.name).substr(at + parser.size());
    return parser.ends_with('/') ? rest.find('/') == std::string_view::npos && rest.ends_with(".py")
                                 : rest.empty();
  });
}

bool leave_to_copies(std::span<const ConfigText> files, std::vector<Finding>& findings) {
  std::vector<const ConfigText*> copies;
  for (const ConfigText& file : files) {
    if (is_parser(file)) copies.push_back(&file);
  }
  if (copies.empty()) return false;
  leave_imports(copies, findings);
  std::vector<std::string> names;
  std::set<std::string> seen;
  Place place;
  std::string copy;
  const auto is_known = [&](const Finding& finding) {
    const RefusedWord refused = refused_word(finding);
    if (finding.rule != "unknown_option" && refused.word.empty()) return false;
    for (const ConfigText* const text : copies) {
      const bool has =
          refused.word.empty() ? has_option(*text, name_in(finding)) : has_word(*text, refused);
      if (!has) continue;
      if (names.empty()) place = finding.place, copy = text->name;
      const std::string name = refused.word.empty()
                                   ? name_in(finding)
                                   : fmt::format("{} {}", refused.option, refused.word);
      if (seen.insert(name).second) names.push_back(name);
      return true;
    }
    return false;
  };
  std::erase_if(findings, is_known);
  if (names.empty()) return false;
  findings.push_back(
      {Severity::note, "own_copy", place,
       fmt::format("{}: the copy that the file stands in has {} ({}), and the "
                   "release that is checked has not; what that does is not predicted",
                   listed(names), names.size() == 1 ? "it" : "them", copy),
       "", "qplan: names that the parser of the copy beside the file has"});
  return true;
}

}  // namespace qplan
