#pragma once
// Accuracy as a person reads it: the same sheets as text and as Markdown.

#include <string>
#include <vector>

#include "cli/accuracy_summary.h"

namespace qplan {

std::string accuracy_text(const std::vector<JudgedRun>& runs, const Accuracy& accuracy,
                          const AccuracyQuestion& question);
std::string accuracy_markdown(const Accuracy& accuracy, const AccuracyQuestion& question);

}  // namespace qplan
