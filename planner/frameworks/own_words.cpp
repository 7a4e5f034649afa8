#include "planner/frameworks/own_words.h"

#include <fmt/format.h>

#include <string>

#include "models/error.h"

namespace qplan {

void refuse_word(std::string_view given, std::string_view own_words) {
  throw Error(fmt::format("must be one of {}, not '{}'", own_words, shown(std::string(given))));
}

}  // namespace qplan
