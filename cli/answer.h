#pragma once
// Answers in JSON, as they leave the program: each begins with what describes it.

#include <string>
#include <string_view>

#include "models/json_fwd.h"

namespace qplan {

// The answer with its "schema" (models/schema_id.h) as the first key.
Json versioned(std::string_view name, const Json& answer);

// That as text, indented, with a newline; names that are no UTF-8 lose what is not.
std::string answer_text(std::string_view name, const Json& answer);

// The same on one line, as logs and other programs want it.
std::string answer_line(std::string_view name, const Json& answer);

}  // namespace qplan
