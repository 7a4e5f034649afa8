#pragma once
// What may be asked of a plan's words one by one: which values one may have, and which a line says.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/plan/plan_word.h"

namespace qplan {

// Of the word with this key, in their table's order; empty: a number, or words with numbers in
// them.
std::vector<std::string> values_of_word(std::string_view key);

// The whole numbers that the word with this key takes; none: it takes others.
struct WordBounds {
  std::int64_t low = 0, high = 0;
};
std::optional<WordBounds> bounds_of_word(std::string_view key);

// Whether its value is a list, with '+' or commas between.
bool is_joined_list(std::string_view key);

// A word that a plan's line says ("tp4" or "tp=4"), and its key ("tp").
struct SaidWord {
  std::string_view key;
  std::string text;
};
// Those of a line, in its order. Throws Error where parse_plan() does.
std::vector<SaidWord> words_said(std::string_view line);

// What the command line says of a word.
struct WordText {
  std::string_view key, value;
  std::string help;      // its values included: "pipeline schedule: gpipe, 1f1b, ..."
  std::string fallback;  // the default of a plan, as it is written
  Given given = Given::listed;
  bool is_truth = false, is_number = false;
};
// Of every word, in the table's order.
std::vector<WordText> word_texts();

}  // namespace qplan
