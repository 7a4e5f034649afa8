#pragma once
// Two ways to fail: `Error` is the user's problem and helps them; QPLAN_CHECK is ours and stops.

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace qplan {

// The user's input cannot be used. The message is one full sentence: what, where, what instead.
// Caught in main(); exit code 2.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Prints the sentence with its place and aborts.
[[noreturn]] void check_failed(std::string_view sentence, std::source_location where);

// The candidate closest to `word` by edit distance, or "" if none is close enough to offer.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

// "; did you mean 'x'?" when a near name exists, else "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

// Text from outside as a message may show it: shortened, control characters replaced by '?'.
std::string shown(std::string_view text);

}  // namespace qplan

// Our own mistake if false; stays on in release. The sentence says what must hold.
#define QPLAN_CHECK(condition, sentence) \
  ((condition) ? static_cast<void>(0)    \
               : ::qplan::check_failed(sentence, std::source_location::current()))
