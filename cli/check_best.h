#pragma once
// The better plan that `qplan check` names beside a job's own.

#include "cli/check_answer.h"

namespace qplan {

// The best plan for the same sequences, searched where the files' implementation has any; where
// none fits, a finding that says so.
void find_best(FoundInFiles& found, const JobChoices& choices);

// Who trains how, and on which engines answers are made, of the same step on the same GPUs: those
// that the files set aside stay so.
void find_best_step(FoundInFiles& found, const JobChoices& choices);

}  // namespace qplan
