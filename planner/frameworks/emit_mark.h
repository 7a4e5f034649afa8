#pragma once
// What says of a file that `qplan emit` wrote it.

#include <string_view>

namespace qplan {

inline constexpr std::string_view kWrittenByEmit = "written by qplan emit";

}  // namespace qplan
