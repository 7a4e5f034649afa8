#pragma once
// Arguments of ms-swift 3, of which release 4 has other names.

#include <vector>

#include "planner/frameworks/finding.h"
#include "planner/frameworks/setting.h"

namespace qplan {

// Arguments of a job of ms-swift 3 in the words of release 4, with a finding that says so; those
// that release 4 has nothing for are left out. A job with a word that only release 4 has is one of
// that, and comes back as it is.
Settings of_this_swift(Settings arguments, bool megatron, std::vector<Finding>& findings);

}  // namespace qplan
