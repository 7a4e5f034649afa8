#pragma once
// Why: what limits a plan, what the runner-up lost by, what the refused plans did wrong.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/report.h"
#include "planner/search/search.h"

namespace qplan {

// The words that all plans share, said once, and what is left of each.
struct CommonWords {
  std::string common;
  std::vector<std::string> own;
};
CommonWords split_common_words(const std::vector<Answer>& answers);

// "limits: 78% of the step is compute; the largest loss is ..., memory has 12 GiB to spare".
std::string limits_text(const Job& job, const Answer& answer);

// The words in which a plan is another than `best`: "loss=te", "without recompute=full", "vpp8
// instead of vpp7".
std::string change_text(const ParallelPlan& best, const ParallelPlan& plan);

// A setting that the search did not try, on its best plan (planner/search/untried.h).
struct UntriedSetting {
  RankedPlan ranked;
  bool written = true;  // false: the framework has it, and `emit` does not write it
};
// What each would gain; empty: nothing.
std::string untried_text(const ParallelPlan& best, Seconds step_time,
                         const std::vector<UntriedSetting>& untried);

// What the second plan does otherwise, and the parts that it loses and gains by.
std::string runner_up_text(const Answer& best, const Answer& second, bool tie);

// Who refuses plans by a rule, or by what a framework's files can say.
std::string source_of_refusal(const Job& job, const SearchSpace& space, const std::string& rule);

// A rule that refused plans: how many, and what it says of one of them.
struct Refusal {
  std::string rule;
  std::int64_t count = 0;
  std::string example;  // empty: the rule alone says it
};
// The most frequent first.
std::vector<Refusal> refusals_of(const Job& job, const SearchSpace& space,
                                 const std::map<std::string, Refused>& refused);

// The same as text, each with who refuses.
std::string rules_text(const Job& job, const SearchSpace& space,
                       const std::map<std::string, Refused>& refused);

}  // namespace qplan
