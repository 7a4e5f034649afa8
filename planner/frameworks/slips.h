#pragma once
// Names and choices that were plainly meant, where another was typed. Private to check().

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/option.h"

namespace qplan {

// The one name of these lists that is a slip away from `written`: two letters of a long name, one
// of a short one, or another case; other words ("decoder" for "encoder") and digits are no slips.
// Empty: none is, or several.
std::string certain_name(std::string_view written, std::span<const OptionList* const> lists);

// The same of an option's choices, or the one that is the same format by another name ("float16":
// "fp16").
std::string certain_choice(std::string_view written, const std::vector<std::string>& choices);

}  // namespace qplan
