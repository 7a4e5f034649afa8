#pragma once
// Which values a plan's word may have, where they can be listed: for shells that complete them.

#include <string>
#include <string_view>
#include <vector>

namespace qplan {

// Of the word with this key, in their table's order; empty: a number, or words with numbers in
// them.
std::vector<std::string> values_of_word(std::string_view key);

}  // namespace qplan
