#pragma once
// What `qplan check` found, as JSON (docs/check.md).

#include "cli/check_answer.h"

namespace qplan {

Json check_json(const FoundInFiles& found);   // of one job
Json checks_json(const CheckAnswer& answer);  // of several
Json skipped_json(const CheckAnswer& answer);

}  // namespace qplan
