#pragma once
// Characters of the formats that we read, whatever the locale.

namespace qplan {

constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace qplan
