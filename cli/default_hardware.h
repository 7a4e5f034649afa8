#pragma once
// The machine of a job where nobody names one.

#include <string_view>

namespace qplan {

inline constexpr std::string_view kDefaultHardware = "h100-sxm";

}  // namespace qplan
