#pragma once
// Formatted text onto a stream.

#include <fmt/format.h>

#include <ostream>

namespace qplan {

// As fmt::print of <fmt/ostream.h>, which makes each file that includes it compile the whole of
// fmt's formatting once more (2 s); this uses what the library holds compiled.
template <class... Args>
void print(std::ostream& out, fmt::format_string<Args...> text, const Args&... args) {
  out << fmt::vformat(text, fmt::make_format_args(args...));
}

}  // namespace qplan
