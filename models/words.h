#pragma once
// Enumerators are the words of the command line and of JSON; this maps them both ways, once.

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/error.h"

namespace qplan {

// Specialise with `static constexpr auto table = std::to_array<std::pair<E,
// std::string_view>>({...})` and `static constexpr std::string_view what` ("schedule") for every
// enum that a person can write.
template <class E>
struct Words;

template <class E>
constexpr std::string_view to_word(E value) {
  for (const auto& [e, word] : Words<E>::table) {
    if (e == value) return word;
  }
  return "?";
}

// Same word with '_' and '-' treated alike ("zb_h1" is "zb-h1").
bool same_word(std::string_view a, std::string_view b);

template <class E>
std::optional<E> try_from_word(std::string_view text) {
  for (const auto& [e, word] : Words<E>::table) {
    if (same_word(word, text)) return e;
  }
  return std::nullopt;
}

// Throws Error: "schedule 'x' is unknown; choose one of a, b, c".
[[noreturn]] void unknown_word(std::string_view what, std::string_view text,
                               const std::vector<std::string>& known);

template <class E>
E from_word(std::string_view text) {
  if (const auto value = try_from_word<E>(text)) return *value;
  std::vector<std::string> known;
  for (const auto& [e, word] : Words<E>::table) known.emplace_back(word);
  unknown_word(Words<E>::what, text, known);
}

}  // namespace qplan
