#include "planner/frameworks/plain_number.h"

#include "models/ascii.h"
#include "models/text.h"

namespace qplan {

std::string plain_number(std::string_view text) {
  text = trimmed(text);
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool between = text[i] == '_' && i > 0 && i + 1 < text.size() && is_digit(text[i - 1]) &&
                         is_digit(text[i + 1]);
    if (!between) plain += text[i];
  }
  return plain;
}

}  // namespace qplan
