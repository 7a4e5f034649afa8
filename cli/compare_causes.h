#pragma once
// Why two plans differ: one change after the other, from the first plan to the second.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/report.h"

namespace qplan {

// A plan of a comparison.
struct ComparedPlan {
  std::string label;  // as it was named: a line, a file, "the best plan"
  std::shared_ptr<Job> job;
  ParallelPlan plan;
  std::vector<std::string> assumed;  // sentences
  std::optional<Answer> answer;      // always there once it is asked
};

// What one plan has over another; B less A.
struct PlanDelta {
  Seconds step_time;
  Bytes device_peak;
  TimeBreakdown time;
  StageMemory memory;  // of the worst stages
};
PlanDelta delta_of(const Estimate& a, const Estimate& b);

// A word of the plan, or a fact of the job, that differs.
struct Difference {
  std::string word, a, b;          // its values as text
  std::optional<PlanDelta> alone;  // A with this alone as in B; none: no such plan can run
  std::string refused;             // why
};

// One step of the way from A to B.
struct Cause {
  std::vector<std::size_t> changes;  // of the differences; several where none of them goes alone
  PlanDelta delta;
};

struct Causes {
  std::vector<Difference> differences;  // in the order of the plan's words, the job's facts first
  std::vector<Cause> way;               // their sum is the whole; empty: a plan cannot run
};

// Of two plans that were asked. At each step the change that moves the step time most is taken, of
// those after which the plan can run; where none goes alone, two together, then three, then all
// that are left. What a change does depends on those before it: the order is part of the answer.
Causes causes_of(const ComparedPlan& a, const ComparedPlan& b);

}  // namespace qplan
