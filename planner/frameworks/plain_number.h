#pragma once
// Numbers as Python spells them.

#include <string>
#include <string_view>

namespace qplan {

// A number's text as other languages take it: without what Python's int() and float() skip, which
// are blanks around it, a plus, and single underscores between digits.
std::string plain_number(std::string_view text);

}  // namespace qplan
