#include "planner/runs/flags.h"

#include <algorithm>

#include "models/text.h"
#include "planner/runs/phrases.h"

namespace qplan {
namespace {

constexpr std::string_view kColumn = "other_flags";

// "A, B + C" is three words; "EP overlap+delay_wgrad" is one.
std::vector<std::string_view> words_of(std::string_view cell) {
  std::vector<std::string_view> words;
  while (!cell.empty()) {
    const std::size_t comma = std::min(cell.find(','), cell.size());
    const std::size_t plus = std::min(cell.find(" + "), cell.size());
    const std::string_view word = trimmed(cell.substr(0, std::min(comma, plus)));
    cell.remove_prefix(std::min(cell.size(), comma < plus ? comma + 1 : plus + 3));
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

}  // namespace

std::vector<std::string> apply_flags(const RunRow& row, RunInputs& in) {
  std::vector<std::string> unknown;
  for (const std::string_view word : words_of(row.text(kColumn))) {
    known_phrases().apply_to_model(kColumn, word, row, in);
    if (!known_phrases().apply(kColumn, word, row, in).known) unknown.emplace_back(word);
  }
  return unknown;
}

}  // namespace qplan
