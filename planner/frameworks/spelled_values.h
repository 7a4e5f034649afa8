#pragma once
// Values as each syntax spells them: which quotes they need. Private to corrections.

#include <optional>
#include <string>
#include <string_view>

namespace qplan {

bool is_number(const std::string& text);

// `raw` is what stood there, whose quotes are kept; empty: nothing did.
std::string in_yaml(const std::string& value, std::string_view raw);
std::string in_json(const std::string& value, std::string_view raw);
std::string in_python(const std::string& value, std::string_view raw);

// A word of a shell that stands in no quotes; nothing: it cannot be written.
std::optional<std::string> in_words(const std::string& value);

}  // namespace qplan
