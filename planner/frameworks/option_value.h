#pragma once
// Whether a framework's own reader takes a value: by the type, range and choices of its option.

#include <string>

#include "planner/frameworks/option.h"

namespace qplan {

// Who turns text or JSON into the type.
enum class ValueReader : std::uint8_t {
  argparse,  // int("8"), float("1e-5")
  trainer,   // transformers' parser: the same, and words for true and false
  json,      // pydantic: "8" is 8, and 8.0 is
  yaml,      // accelerate: "true" is true
  python     // keyword arguments, which nothing converts
};

// What it must be ("a whole number, in digits"); empty: it is taken.
std::string wanted_instead(const KnownOption& known, const Json& value, ValueReader reader);

}  // namespace qplan
