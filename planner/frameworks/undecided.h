#pragma once
// Findings that hang on what is not known of a job: values that only a run can tell, values and
// names that their reader refuses, and words of a command that may be arguments ($GQA). The job is
// judged again with each of these saying something else; what does not hold in every case is no
// error, and nothing to correct. Private to check() and fix().

#include <cstdint>
#include <functional>

#include "planner/frameworks/check.h"

namespace qplan {

// Whether the finding is that its reader refuses a value: what hangs on it was not judged.
bool is_of_refused_value(const Finding& finding);

// What is said of a job's parts, however they came about.
using JudgeJob = std::function<Checked(const JobFiles&)>;

void drop_undecided(const JobFiles& job, std::int64_t gpus, const JudgeJob& judge,
                    Checked& checked);

}  // namespace qplan
