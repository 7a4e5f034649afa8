// Answers are the same bits on every machine, so what predicts asks no C library for a function
// whose last digit differs between libraries (models/portable_math.h).

#include <doctest/doctest.h>

#include <regex>
#include <set>
#include <string>

#include "tests/house/text.h"

using namespace qplan::house;

TEST_CASE("what predicts takes logarithms and powers that are the same bits everywhere") {
  // Where it does not matter, and why.
  const std::set<std::string> exempt = {
      "costmodel/price/interpolate.cpp",         // of floats, which are rounded from double
      "costmodel/profiles/calibrate.cpp",        // makes a profile on one machine, no answer
      "costmodel/rollout/response_lengths.cpp",  // lengths are whole tokens
      "models/text.cpp",                         // chooses the unit that a text is in
  };
  static const std::regex call(
      "std::(log|log2|log10|log1p|exp|exp2|expm1|pow|lgamma|tgamma|erf|"
      "erfc|sinh?|cosh?|tanh?|cbrt|hypot)\\(");
  std::set<std::string> found;
  for (const char* folder : {"models", "costmodel", "planner", "cli"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      const std::string ending = entry.path().extension().string();
      if (ending != ".cpp" && ending != ".h") continue;
      if (std::regex_search(text_of(entry.path()), call)) {
        found.insert(fs::relative(entry.path(), kRoot).generic_string());
      }
    }
  }
  CHECK(found == exempt);
}
