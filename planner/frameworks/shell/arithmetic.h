#pragma once
// "$((...))" of shell scripts.

#include <cstdint>
#include <optional>
#include <string_view>

namespace qplan {

// Integers with + - * / % and brackets; nothing where there is anything else, or too large.
std::optional<std::int64_t> shell_arithmetic(std::string_view text);

}  // namespace qplan
