#pragma once
// Values that a framework has words of its own for.

#include <string_view>

namespace qplan {

// Throws Error "must be one of p2p, a2a, not 'x'": the framework's own words, which a plan's are
// not.
[[noreturn]] void refuse_word(std::string_view given, std::string_view own_words);

}  // namespace qplan
