#include "planner/frameworks/fix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "models/error.h"
#include "planner/frameworks/undecided.h"

namespace qplan {
namespace {

// What follows a correction is corrected with it, so often: a name that is spelled right shows a
// value that is wrong.
constexpr int kMostFollowUps = 4;
// Steps that a job may take; each makes findings fewer.
constexpr int kMostSteps = 1000;

std::string key_of(const Finding& finding) {
  return finding.rule + '\n' + finding.place.file + '\n' + finding.message;
}

using Kinds = std::map<std::string, std::int64_t, std::less<>>;

Kinds kinds_of(const Checked& checked) {
  Kinds kinds;
  for (const Finding& finding : checked.findings) ++kinds[finding.rule];
  return kinds;
}

std::int64_t number_of_kind(const Kinds& kinds, const std::string& rule) {
  const auto found = kinds.find(rule);
  return found == kinds.end() ? 0 : found->second;
}

// Corrections in the order that they are made in. A name comes first: what is misspelt has no
// meaning, and others are judged without it. An option that seems to be missing may be misspelt.
enum class Turn : std::uint8_t { names, others, additions };

bool is_unknown(const Finding& finding) {
  return finding.rule == "unknown_option";
}

Turn turn_of(const Finding& finding) {
  const bool adds = std::all_of(finding.fix.begin(), finding.fix.end(),
                                [](const Edit& edit) { return edit.begin == edit.end; });
  return adds ? Turn::additions : finding.fix.renames ? Turn::names : Turn::others;
}

bool takes_out(const Finding& finding) {
  return std::all_of(finding.fix.begin(), finding.fix.end(),
                     [](const Edit& edit) { return edit.text.empty(); });
}

// Whether two edits cannot both be made in one text: they overlap, or are one and the same.
bool clash(const Edit& a, const Edit& b) {
  if (a.file != b.file) return false;
  const bool same = a.begin == b.begin && a.end == b.end && a.text == b.text;
  return same || (a.begin < b.end && b.begin < a.end);
}

bool clash(const std::vector<Edit>& made, const std::vector<Edit>& more) {
  return std::any_of(more.begin(), more.end(), [&](const Edit& edit) {
    return std::any_of(made.begin(), made.end(), [&](const Edit& m) { return clash(m, edit); });
  });
}

class Fixer {
 public:
  Fixer(std::span<const ConfigText> files, const Judge& judge)
      : judge_(judge), files_(files.begin(), files.end()), checked_(judge(files)) {}

  FixedFiles fix() {
    Checked before = checked_;
    while (static_cast<int>(steps_.size()) < kMostSteps && step()) {
    }
    FixedFiles result{
        std::move(files_), std::move(before), std::move(checked_), std::move(steps_), {}};
    for (const Finding& finding : result.checked.findings) {
      result.left.push_back({finding, why_left(finding)});
    }
    return result;
  }

 private:
  // Whether anything was corrected.
  bool step() {
    refused_.clear();
    return improve(Turn::names) || improve(Turn::others) || improve(Turn::additions);
  }

  // All corrections at once, or those of them that hold.
  bool improve(Turn turn) {
    const std::vector<const Finding*> all = fixable(turn);
    if (all.size() > 1 && attempt(all)) return true;
    bool any = false;
    for (;;) {
      const auto rest = fixable(turn);
      const auto next = std::find_if(rest.begin(), rest.end(), [this](const Finding* finding) {
        return refused_.count(key_of(*finding)) == 0;
      });
      if (next == rest.end()) return any;
      any = attempt({*next}) || any;
    }
  }

  // Findings with corrections of this turn. Nothing is taken out beside a name that nobody knows:
  // what it stands for may need the other.
  [[nodiscard]] std::vector<const Finding*> fixable(Turn turn) const {
    std::vector<const Finding*> found;
    for (const Finding& finding : checked_.findings) {
      if (finding.fix.empty() || turn_of(finding) != turn || waits(finding)) continue;
      found.push_back(&finding);
    }
    return found;
  }

  // Where stage 3 is asked for and not there, it is the stage that may be wrong.
  [[nodiscard]] bool waits_for_stage(const Finding& finding) const {
    return finding.rule == "stage3_keys" &&
           std::any_of(checked_.findings.begin(), checked_.findings.end(), [](const Finding& f) {
             return f.rule == "offload_params_zero" || f.rule == "offload_nvme" ||
                    f.rule == "offload_below_stage";
           });
  }

  [[nodiscard]] bool waits(const Finding& finding) const {
    if (waits_for_stage(finding)) return true;
    return takes_out(finding) && !is_unknown(finding) &&
           std::any_of(checked_.findings.begin(), checked_.findings.end(), [](const Finding& f) {
             return is_unknown(f) && f.severity == Severity::error;
           });
  }

  // What is wrong with making these corrections is kept if it is one.
  bool attempt(const std::vector<const Finding*>& wanted) {
    std::vector<const Finding*> targets;
    std::vector<Edit> edits;
    for (const Finding* const finding : wanted) {
      if (clash(edits, finding->fix)) continue;  // another time
      targets.push_back(finding);
      edits.insert(edits.end(), finding->fix.begin(), finding->fix.end());
    }
    std::vector<std::vector<Edit>> steps;
    std::vector<ConfigText> files = files_;
    std::string why;
    for (int round = 0; round < kMostFollowUps && !edits.empty(); ++round) {
      if (!apply(files, edits)) {
        why = "its place is not in the files that were given";
        break;
      }
      steps.push_back(std::move(edits));
      edits.clear();
      Checked after;
      try {
        after = judge_(files);
      } catch (const Error& error) {
        why = fmt::format("the file could not be read any more: {}", error.what());
        break;
      }
      why = why_not_better(after, targets);
      if (why.empty()) {
        files_ = std::move(files);
        checked_ = std::move(after);
        steps_.insert(steps_.end(), steps.begin(), steps.end());
        return true;
      }
      edits = follow_ups(after, targets);
    }
    if (wanted.size() == 1) refused_[key_of(*wanted.front())] = why;
    return false;
  }

  // Whether the files are others then.
  static bool apply(std::vector<ConfigText>& files, const std::vector<Edit>& edits) {
    bool changed = false;
    for (ConfigText& file : files) {
      std::string text = with_edits(file.text, file.name, edits);
      changed = changed || text != file.text;
      file.text = std::move(text);
    }
    return changed;
  }

  static bool are_values(const std::vector<const Finding*>& targets) {
    return std::all_of(targets.begin(), targets.end(),
                       [](const Finding* target) { return is_of_refused_value(*target); });
  }

  // Corrections of what came up, and stands in the way: the rest has a turn of its own.
  [[nodiscard]] std::vector<Edit> follow_ups(const Checked& after,
                                             const std::vector<const Finding*>& targets) const {
    const Kinds before = kinds_of(checked_), now = kinds_of(after);
    const bool values = are_values(targets);
    std::vector<Edit> edits;
    for (const Finding& finding : after.findings) {
      if (values && finding.severity != Severity::error) continue;
      const bool more = number_of_kind(now, finding.rule) > number_of_kind(before, finding.rule);
      if (!more || finding.fix.empty() || clash(edits, finding.fix)) continue;
      edits.insert(edits.end(), finding.fix.begin(), finding.fix.end());
    }
    return edits;
  }

  // A sentence; empty: it is better than it was.
  [[nodiscard]] std::string why_not_better(const Checked& after,
                                           const std::vector<const Finding*>& targets) const {
    // Of a name without which nobody could tell whose the files are, they may say a job now.
    if ((checked_.framework && after.framework != checked_.framework) ||
        (checked_.says_plan && !after.says_plan)) {
      return "the files would not say the same job any more";
    }
    const Kinds before = kinds_of(checked_), now = kinds_of(after);
    // A name that is spelled right shows what was wrong beside it; a value, what is to be known of
    // it.
    const bool renames = std::all_of(targets.begin(), targets.end(), [](const Finding* target) {
      return turn_of(*target) == Turn::names;
    });
    const bool values = are_values(targets);
    for (const Finding& finding : after.findings) {
      if (renames || (values && finding.severity != Severity::error)) continue;
      if (number_of_kind(now, finding.rule) > number_of_kind(before, finding.rule)) {
        return fmt::format("with it there would be another finding: {} [{}]", finding.message,
                           finding.rule);
      }
    }
    Kinds corrected;
    for (const Finding* const target : targets) ++corrected[target->rule];
    const bool all = std::all_of(corrected.begin(), corrected.end(), [&](const auto& kind) {
      return number_of_kind(now, kind.first) <= number_of_kind(before, kind.first) - kind.second;
    });
    if (!all) return "with it the finding would still stand";
    const bool of_error = std::any_of(targets.begin(), targets.end(), [](const Finding* target) {
      return target->severity == Severity::error;
    });
    const std::int64_t errors = after.count(Severity::error) - checked_.count(Severity::error);
    const bool worse = errors > 0 || (of_error && errors == 0 && !renames);
    return worse ? "with it there would be no fewer errors" : "";
  }

  [[nodiscard]] std::string why_left(const Finding& finding) const {
    const auto refused = refused_.find(key_of(finding));
    if (refused != refused_.end()) return refused->second;
    if (!finding.fix.why_not.empty()) return finding.fix.why_not;
    if (!finding.fix.empty() && waits_for_stage(finding)) {
      return "stage 3 may be what is meant: parameters are offloaded";
    }
    if (!finding.fix.empty() && waits(finding)) {
      return "an option that nobody knows stands beside it, which may need it";
    }
    return "what to write is for you to decide";
  }

  const Judge& judge_;
  std::vector<ConfigText> files_;
  Checked checked_;
  std::vector<std::vector<Edit>> steps_;
  std::map<std::string, std::string> refused_;  // of the last step, by key_of
};

}  // namespace

FixedFiles fix(std::span<const ConfigText> files, const Judge& judge) {
  return Fixer(files, judge).fix();
}

std::string why_left(const FixedFiles& fixed, const Finding& finding) {
  for (const LeftFinding& left : fixed.left) {
    if (key_of(left.finding) == key_of(finding)) return left.why;
  }
  const bool fewer = number_of_kind(kinds_of(fixed.checked), finding.rule) <
                     number_of_kind(kinds_of(fixed.before), finding.rule);
  // Else it stands with other numbers.
  const auto same =
      std::find_if(fixed.left.begin(), fixed.left.end(),
                   [&](const LeftFinding& left) { return left.finding.rule == finding.rule; });
  return fewer || same == fixed.left.end() ? "" : same->why;
}

}  // namespace qplan
