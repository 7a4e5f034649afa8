#pragma once
// Accuracy as JSON (contract.md).

#include <vector>

#include "cli/accuracy_summary.h"
#include "models/json.h"

namespace qplan {

Json accuracy_json(const std::vector<JudgedRun>& runs, const Accuracy& accuracy,
                   const AccuracyQuestion& question);

}  // namespace qplan
