#pragma once
// What `qplan check` found, for people.

#include <iosfwd>

#include "cli/check_answer.h"

namespace qplan {

// Of several jobs (`each`) each under the name of its file; of files that are none nothing is said.
void print_check_text(const CheckAnswer& answer, bool each, std::ostream& out);

// What follows the findings: the plan of the files, how fast it is, and a better one.
void print_check_job(const FoundInFiles& found, std::ostream& out);

}  // namespace qplan
