#pragma once
// How many typing mistakes lie between two words.

#include <cstddef>
#include <string_view>

namespace qplan {

// Insertions, deletions, replacements and swaps of neighbours ("serach") that turn `a` into `b`.
// Case, and the choice between '_' and '-', are not mistakes worth an edit.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace qplan
