#include "planner/frameworks/readers/misspelt_variables.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "models/ascii.h"
#include "models/edit_distance.h"
#include "models/error.h"
#include "planner/frameworks/readers/formats.h"

namespace qplan {
namespace {

// Where a name stands, and as what.
struct Mention {
  const ConfigText* script = nullptr;
  std::size_t at = 0, line = 0;  // offsets
};

struct Name {
  std::vector<Mention> sets;  // "NAME=", "NAME+="
  std::vector<Mention> uses;  // "$NAME", "${NAME}", "${NAME[@]}"
  bool array = false;
  bool others = false;  // it stands elsewhere: as a word, asked for, or with a default
};
using Names = std::map<std::string, Name>;

bool is_name(char c) {
  return is_letter(c) || is_digit(c) || c == '_';
}

// Whether the line is a remark as a whole.
bool is_remark(std::string_view line) {
  const std::size_t first = line.find_first_not_of(" \t");
  return first != std::string_view::npos && line[first] == '#';
}

// Whether a line asks what the environment has: "[ -z "$NAME" ]", "if test".
bool asks(std::string_view line) {
  constexpr std::array<std::string_view, 5> kWords{" -z ", " -n ", "==", "!=", "test "};
  return std::any_of(kWords.begin(), kWords.end(), [&](std::string_view word) {
    return line.find(word) != std::string_view::npos;
  });
}

void add_use(const Mention& mention, std::string_view behind, bool braces, bool asked, Name& name) {
  const bool whole = !braces || behind.starts_with('}');
  const bool items = braces && (behind.starts_with("[@]}") || behind.starts_with("[*]}"));
  if (!whole && !items) name.others = true;
  if (asked) name.others = true;
  name.uses.push_back(mention);
  name.array = name.array || items;
}

void read_names(const ConfigText& script, Names& names) {
  const std::string_view text = script.text;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const bool asked = asks(line);
    for (std::size_t at = is_remark(line) ? line.size() : 0; at < line.size();) {
      if (!is_letter(line[at]) && line[at] != '_') {
        // "4x" is no name.
        while (is_digit(line[at]) && at + 1 < line.size() && is_name(line[at + 1])) ++at;
        ++at;
        continue;
      }
      std::size_t stop = at;
      while (stop < line.size() && is_name(line[stop])) ++stop;
      Name& name = names[std::string(line.substr(at, stop - at))];
      const Mention mention{&script, begin + at, begin};
      const std::string_view before = line.substr(0, at), behind = line.substr(stop);
      const bool braces = before.ends_with("${");
      const bool starts = before.find_first_not_of(" \t;") == std::string_view::npos ||
                          before.ends_with("export ") || before.ends_with("local ") ||
                          before.ends_with("; ") || before.ends_with(' ');
      if (braces || before.ends_with('$')) {
        add_use(mention, behind, braces, asked, name);
      } else if (starts && (behind.starts_with('=') || behind.starts_with("+="))) {
        name.sets.push_back(mention);
        name.array = name.array || behind.substr(behind.find('=') + 1).starts_with('(');
      } else {
        name.others = true;
      }
      at = stop;
    }
    begin = end + 1;
  }
}

// What schedulers and platforms set.
bool is_of_environment(std::string_view name) {
  constexpr std::array<std::string_view, 21> kBegins{
      "SLURM_", "PBS_",    "LSB_",  "OMPI_", "PMI_",      "MPI_",       "PET_",
      "WANDB_", "HF_",     "NCCL_", "AWS_",  "KUBE",      "CUDA_",      "TORCH",
      "MLP_",   "ARNOLD_", "VC_",   "RANK",  "NODE_RANK", "WORLD_SIZE", "MASTER_"};
  return std::any_of(kBegins.begin(), kBegins.end(),
                     [&](std::string_view begin) { return name.starts_with(begin); });
}

std::vector<std::string_view> parts_of_name(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find('_', at), name.size());
    parts.push_back(name.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

char small(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

// One letter more or less, two in each other's place, another case; of a part of four letters and
// more another letter. Digits, and the letter that a name begins with, tell names apart.
bool is_slip_of_name(const std::string& a, const std::string& b) {
  if (edit_distance(a, b) > 1 || small(a.front()) != small(b.front())) return false;
  const auto digits = [](std::string text) {
    std::erase_if(text, [](char c) { return !is_digit(c); });
    return text;
  };
  if (digits(a) != digits(b)) return false;
  const auto left = parts_of_name(a), right = parts_of_name(b);
  if (left.size() != right.size()) return true;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i] == right[i]) continue;
    std::string one(left[i]), other(right[i]);
    std::sort(one.begin(), one.end());
    std::sort(other.begin(), other.end());
    if (one == other) continue;  // two letters in each other's place
    if (left[i].size() == right[i].size() && left[i].size() < 4) return false;
    if (std::min(left[i].size(), right[i].size()) < 2) return false;  // "A", "AB": other words
  }
  return true;
}

// Of arrays also a part that is cut short: PERF_ARGS, PERFORMANCE_ARGS.
bool is_short_for(const std::string& a, const std::string& b) {
  const auto left = parts_of_name(a), right = parts_of_name(b);
  if (left.size() != right.size() || left.size() < 2) return false;
  for (std::size_t i = 0; i < left.size(); ++i) {
    const bool begins = left[i].starts_with(right[i]) || right[i].starts_with(left[i]);
    if (!begins || std::min(left[i].size(), right[i].size()) < 3) return false;
  }
  return true;
}

// What is set and not used that is meant by a name; null: none is, or several.
const std::pair<const std::string, Name>* meant_by(const std::pair<const std::string, Name>& used,
                                                   const Names& names) {
  const std::pair<const std::string, Name>* found = nullptr;
  for (const auto& known : names) {
    const auto& [name, mentions] = known;
    if (mentions.sets.empty() || !mentions.uses.empty() || mentions.others) continue;
    if (name.size() < 4 || mentions.array != used.second.array) continue;
    const bool slip =
        is_slip_of_name(name, used.first) || (mentions.array && is_short_for(name, used.first));
    if (!slip) continue;
    // "NNODES=$NNODE" asks the environment for it.
    const bool beside =
        std::any_of(mentions.sets.begin(), mentions.sets.end(), [&](const Mention& set) {
          return std::any_of(
              used.second.uses.begin(), used.second.uses.end(),
              [&](const Mention& use) { return set.script == use.script && set.line == use.line; });
        });
    if (beside || found != nullptr) return nullptr;
    found = &known;
  }
  return found;
}

}  // namespace

std::vector<Finding> misspelt_variables(std::span<const ConfigText* const> scripts) {
  Names names;
  for (const ConfigText* const script : scripts) read_names(*script, names);
  std::vector<Finding> findings;
  for (const auto& used : names) {
    const auto& [name, mentions] = used;
    const bool unset = mentions.sets.empty() && !mentions.others && !mentions.uses.empty();
    if (!unset || name.size() < 4 || is_of_environment(name)) continue;
    const auto* const meant = meant_by(used, names);
    if (meant == nullptr) continue;
    const Mention& first = mentions.uses.front();
    Correction fix;
    for (const Mention& use : mentions.uses) {
      fix.push_back({use.script->name, use.at, use.at + name.size(), meant->first});
    }
    findings.push_back({Severity::error,
                        "misspelt_variable",
                        {first.script->name, line_of(first.script->text, first.at)},
                        fmt::format("nothing sets ${}, and {} is set and never used", shown(name),
                                    shown(meant->first)),
                        fmt::format("did you mean ${}?", shown(meant->first)),
                        "bash(1), parameter expansion",
                        std::move(fix)});
  }
  return findings;
}

}  // namespace qplan
