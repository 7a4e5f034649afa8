#pragma once
// Patterns of a shell's cases and expansions: "*.sh", "llama-?b".

#include <optional>
#include <string_view>

namespace qplan {

// Nothing: the pattern has more than "*" and "?" in it, which are all that is read.
std::optional<bool> matches(std::string_view text, std::string_view pattern);

}  // namespace qplan
