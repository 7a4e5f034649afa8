#pragma once
// How a phrase is found in a cell, and the month that it may hold.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/words.h"

namespace qplan {

enum class Match : std::uint8_t { exact, prefix, contains };

template <>
struct Words<Match> {
  static constexpr std::string_view what = "match";
  static constexpr auto table = std::to_array<std::pair<Match, std::string_view>>(
      {{Match::exact, "exact"}, {Match::prefix, "prefix"}, {Match::contains, "contains"}});
};

// What was found: the text, what follows the phrase in it, and the month named, 202412; 0: none.
struct Found {
  std::string_view text, rest;
  int month = 0;
};

// A phrase, letter by letter; "{YY.MM}", "{YYYYMM}" and the like in it stand for digits of a month
// from 2020 on.
class Pattern {
 public:
  Pattern(Match match, std::string_view phrase);  // throws Error for a "{" without its "}"
  [[nodiscard]] std::optional<Found> find(std::string_view text) const;
  [[nodiscard]] bool names_month() const { return !date_.empty(); }

 private:
  [[nodiscard]] std::optional<Found> find_at(std::string_view text, std::size_t at) const;

  Match match_;
  std::string before_, date_, after_;
};

// "202412"; throws Error for what is no month.
int parse_month(std::string_view text);

}  // namespace qplan
