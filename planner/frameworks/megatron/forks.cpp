#include "planner/frameworks/megatron/forks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

#include "planner/frameworks/aliases.h"
#include "planner/frameworks/option.h"
#include "planner/frameworks/option_names.h"

namespace qplan {
namespace {

constexpr std::string_view kOwn = "own";  // a name that tells the fork (make_option_lists.py)
constexpr std::size_t kFewest = 2;        // of a fork's names: one may be made up
constexpr std::size_t kShown = 4;

// What a fork's word says in another way: findings of this argument, or of this rule.
struct SaysToo {
  std::string_view word, argument, rule;
};
constexpr auto kSaysToo = std::to_array<SaysToo>({
    {"--noop-layers", "--num-layers", "layers_per_stage"},  // these of the layers are none
    {"--num-layer-list", "", "layers_per_stage"},           // layers of each stage
    {"--first-k-dense-replace", "--moe-layer-freq", ""},
    {"--n-shared-experts", "--moe-shared-expert-intermediate-size", ""},
    {"--rope-scaling-type", "--rope-scaling-factor", ""},
});

const KnownOption* option_of_fork(const ConfigPart& part, const std::string& key) {
  return is_known(part, key) ? nullptr : known_options("megatron_forks").find(key);
}

// "A,B" has B.
bool is_owner(std::string_view owners, const std::string& owner) {
  return fmt::format(",{},", owners).find(fmt::format(",{},", owner)) != std::string::npos;
}

std::vector<std::string> owners_of(const KnownOption& option) {
  std::vector<std::string> owners;
  for (std::string rest = option.otherwise + ','; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    owners.push_back(rest.substr(0, comma));
    rest.erase(0, comma + 1);
  }
  return owners;
}

bool is_about(const Finding& finding, const Setting& setting) {
  return finding.place.file == setting.place.file && finding.place.line == setting.place.line &&
         finding.message.starts_with(setting.key) &&
         finding.message.find_first_of(": ") == setting.key.size();
}

void leave_open(Finding& finding, Severity severity, const std::string& sentence) {
  finding.severity = severity;
  finding.message += sentence;
  finding.fix = {};
  finding.fix.why_not = "another program's parser reads it";
}

bool says_too(const ForkWords& fork, const Finding& finding) {
  return std::any_of(kSaysToo.begin(), kSaysToo.end(), [&](const SaysToo& too) {
    const bool said = std::any_of(fork.words.begin(), fork.words.end(),
                                  [&](const Setting* word) { return word->key == too.word; });
    const bool argument =
        !too.argument.empty() && finding.message.starts_with(fmt::format("{} ", too.argument));
    return said && (argument || (!too.rule.empty() && finding.rule == too.rule));
  });
}

// What another parser may take otherwise: names that no list has, choices, and words that are not
// said, where the fork has words of its own for them.
void leave_findings(const ConfigPart& part, const ForkWords& fork, Findings& findings) {
  const std::string& owner = fork.owner;
  std::set<std::string> files{part.place.file};  // and those that it sources
  for (const Setting& setting : part.settings) files.insert(setting.place.file);
  for (Finding& finding : findings) {
    if (files.count(finding.place.file) == 0) continue;
    const bool slip = finding.fix.renames;  // of a name that Megatron has
    if (finding.rule == "unknown_option" && finding.severity == Severity::error && !slip) {
      leave_open(finding, Severity::warning, fmt::format(", unless {} has it", owner));
    } else if (finding.rule == "missing_option" ||
               (finding.severity != Severity::note && says_too(fork, finding))) {
      leave_open(finding, Severity::note, fmt::format(", unless an argument of {} says it", owner));
    }
  }
  for (const Setting& setting : part.settings) {
    const KnownOption* const known = known_option(part, setting.key);
    if (known == nullptr || known->choices.empty()) continue;
    for (Finding& finding : findings) {
      const bool refused = finding.rule == "refused_value" || finding.rule == "bad_value";
      if (refused && finding.severity == Severity::error && is_about(finding, setting)) {
        leave_open(finding, Severity::note, fmt::format("; {} may have others", owner));
      }
    }
  }
}

std::string list_of_words(const ForkWords& fork) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const Setting* const word : fork.words) {
    if (seen.insert(word->key).second) names.push_back(word->key);
  }
  if (names.size() <= kShown) return fmt::format("{}", fmt::join(names, ", "));
  const std::size_t more = names.size() - kShown;
  names.resize(kShown);
  return fmt::format("{} and {} more", fmt::join(names, ", "), more);
}

}  // namespace

ForkWords fork_of(const ConfigPart& part) {
  if (!takes_megatrons(part.dialect) || part.derived) return {};
  struct Names {
    std::set<std::string> all;
    bool tells = false;
  };
  std::map<std::string, Names> said;
  for (const Setting& setting : part.settings) {
    const KnownOption* const option = option_of_fork(part, setting.key);
    if (option == nullptr) continue;
    for (const std::string& owner : owners_of(*option)) {
      said[owner].all.insert(setting.key);
      said[owner].tells = said[owner].tells || option->type == kOwn;
    }
  }
  std::erase_if(said,
                [](const auto& of) { return !of.second.tells || of.second.all.size() < kFewest; });
  const auto most = std::max_element(said.begin(), said.end(), [](const auto& a, const auto& b) {
    return a.second.all.size() < b.second.all.size();
  });
  if (most == said.end()) return {};
  ForkWords fork{most->first, {}};
  for (const Setting& setting : part.settings) {
    const KnownOption* const option = option_of_fork(part, setting.key);
    if (option != nullptr && is_owner(option->otherwise, fork.owner)) {
      fork.words.push_back(&setting);
    }
  }
  return fork;
}

namespace {

// One name alone that one fork has and no release of Megatron's had is more likely its than made
// up, unless it is a slip or what people write for another (--save-dir for --save).
void doubt_single_names(const ConfigPart& part, Findings& findings) {
  if (!takes_megatrons(part.dialect) || part.derived) return;
  for (const Setting& setting : part.settings) {
    const KnownOption* const option = option_of_fork(part, setting.key);
    if (option == nullptr || owners_of(*option).size() != 1) continue;
    if (!certain_key(part, setting).empty() || alias_of(part.dialect, setting.key) != nullptr) {
      continue;
    }
    for (Finding& finding : findings) {
      if (finding.rule == "unknown_option" && finding.severity == Severity::error &&
          is_about(finding, setting)) {
        leave_open(finding, Severity::warning,
                   fmt::format(", unless {} runs it", option->otherwise));
        finding.instead.clear();
      }
    }
  }
}

// Names that all have underscores for dashes: those of epfLLM's Megatron-LLM, which are judged as
// Megatron's.
bool is_spelled_by_underscores(const ConfigPart& part) {
  constexpr std::size_t kMany = 5;
  if (part.dialect != Dialect::megatron || part.derived) return false;
  std::size_t with = 0, without = 0;
  for (const Setting& setting : part.settings) {
    if (setting.syntax != Syntax::words || !setting.key.starts_with("--")) continue;
    if (setting.key.find('_') != std::string::npos) ++with;
    if (setting.key.find('-', 2) != std::string::npos) ++without;
  }
  return with >= kMany && without == 0;
}

bool leave_underscores(const ConfigPart& part, Findings& findings) {
  if (!is_spelled_by_underscores(part)) return false;
  const auto is_name = [&](const Finding& finding) {
    return finding.rule == "unknown_option" &&
           std::any_of(part.settings.begin(), part.settings.end(), [&](const Setting& setting) {
             return setting.key.find('_') != std::string::npos && is_about(finding, setting);
           });
  };
  const std::size_t before = findings.size();
  std::erase_if(findings, is_name);
  if (findings.size() == before) return false;
  findings.push_back(
      {Severity::note, "fork_options", part.place,
       "every name has underscores, as epfLLM's Megatron-LLM takes them, whose "
       "program this is taken to be; Megatron-LM takes dashes alone, and stops",
       "dashes, if it is Megatron-LM's",
       "qplan: planner/frameworks/options/megatron_forks.tsv, names that forks add to the "
       "parser"});
  return true;
}

}  // namespace

bool leave_to_forks(const JobFiles& files, Findings& findings) {
  bool found = false;
  for (const ConfigPart& part : files.parts) {
    const ForkWords fork = fork_of(part);
    if (fork.owner.empty()) {
      doubt_single_names(part, findings);
      found = leave_underscores(part, findings) || found;
      continue;
    }
    found = true;
    std::erase_if(findings, [&](const Finding& finding) {
      return finding.rule == "unknown_option" &&
             std::any_of(fork.words.begin(), fork.words.end(),
                         [&](const Setting* word) { return is_about(finding, *word); });
    });
    leave_findings(part, fork, findings);
    findings.push_back({Severity::note, "fork_options", fork.words.front()->place,
                        fmt::format("{}: arguments of {}, whose program this is taken to be; what "
                                    "they do is not predicted",
                                    list_of_words(fork), fork.owner),
                        "",
                        "qplan: planner/frameworks/options/megatron_forks.tsv, names that forks "
                        "add to the parser"});
  }
  return found;
}

}  // namespace qplan
