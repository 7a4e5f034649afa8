#pragma once
// An argument list as settings: "--flag value" under the flags that a framework's parser knows.

#include <span>
#include <vector>

#include "planner/frameworks/option.h"
#include "planner/frameworks/shell/shell.h"

namespace qplan {

// Words from the first that begins with '-'. A flag that no list knows takes the words up to the
// next flag.
Settings read_arguments(std::span<const ShellWord> words, std::span<const OptionList* const> lists);

}  // namespace qplan
