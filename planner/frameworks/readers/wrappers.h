#pragma once
// What stands before the program that a command starts: profilers, "exec", uv.

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "planner/frameworks/shell/shell.h"

namespace qplan {

bool is_among(std::span<const std::string_view> list, std::string_view word);

// "nsys profile ... torchrun": where the launcher stands behind a profiler, or behind what only a
// run can tell.
std::size_t behind_wrappers(std::span<const ShellWord> words);
// "exec torchrun", "env A=b python".
std::span<const ShellWord> behind_prefixes(std::span<const ShellWord> words);
// "uv run --extra x -m module a=1", "uv run train.py": Python, in an environment that uv makes.
// Empty: it is none of these.
std::vector<ShellWord> without_uv(std::span<const ShellWord> words);

}  // namespace qplan
