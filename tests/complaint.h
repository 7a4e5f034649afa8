// What a refusal says, for tests whose expected words are not a literal.
#pragma once

#include <string>

#include "models/error.h"

namespace qplan {

// The words of the Error that the action throws, "accepted" if it throws none. For words put
// together at run time CHECK_THROWS_WITH_AS would not do: doctest 2.4.8 keeps the pointer it is
// given until after the throw, when a temporary string is gone.
template <typename Action>
std::string complaint_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace qplan
