#pragma once
// Characters of the formats that we read, whatever the locale.

namespace qplan {

constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

constexpr bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Of an identifier, of the shell's and of Python's.
constexpr bool is_name(char c) {
  return is_letter(c) || is_digit(c) || c == '_';
}

}  // namespace qplan
