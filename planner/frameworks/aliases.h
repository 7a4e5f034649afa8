#pragma once
// Options by names that no framework has: what people write, and what there is in its place.

#include <string_view>

#include "planner/frameworks/readers/recognise.h"

namespace qplan {

// An empty `real`: nothing of the kind exists.
struct Alias {
  std::string_view written, real, remark;
};

// Null: nobody is known to write this.
const Alias* alias_of(Dialect dialect, std::string_view written);

}  // namespace qplan
