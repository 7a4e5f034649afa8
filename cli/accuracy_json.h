#pragma once
// Accuracy as JSON (docs/reference/contract.md 7.1).

#include <vector>

#include "cli/accuracy_summary.h"
#include "models/json.h"

namespace qplan {

Json accuracy_json(const std::vector<JudgedRun>& runs, const Accuracy& accuracy,
                   const AccuracyQuestion& question);

}  // namespace qplan
