#pragma once
// The schemas of docs/reference/schema, compiled in: what answers hold, for who asks by machine.

#include <span>
#include <string>
#include <vector>

#include "models/json_fwd.h"

namespace qplan {

// One schema of an object that is any of these answers, with all that they refer to inside.
Json whole_schema(std::span<const std::string> names);

}  // namespace qplan
