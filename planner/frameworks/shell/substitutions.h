#pragma once
// What commands print whose output follows from their words alone, for "$(...)" and "`...`".

#include <optional>
#include <span>
#include <string>

namespace qplan {

// Of "seq 8 8 64" and "expr 16 / 2", without the last line's end; nothing: another command, or
// words that it refuses.
std::optional<std::string> output_of(std::span<const std::string> command);

}  // namespace qplan
