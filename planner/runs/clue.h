#pragma once
// A phrase in a run's row, and when it counts: what the tables about runs share.

#include <algorithm>
#include <string>
#include <vector>

#include "models/csv.h"
#include "planner/runs/condition.h"
#include "planner/runs/pattern.h"

namespace qplan {

struct Clue {
  std::string column, text, where, source;
  Pattern pattern;
  Condition condition;

  [[nodiscard]] bool same_place(const Clue& other) const {
    return column == other.column && text == other.text && where == other.where;
  }
};

// Of a row whose first cells are column, match, phrase and where, and whose last is its source.
// Throws Error for a cell that is none.
Clue read_clue(const CsvTable::Row& row);

[[noreturn]] void refuse_twice(const Clue& clue);

// Adds what was made of a clue, unless one of the same place stands there.
template <class Made>
void add_clue(std::vector<Made>& all, Made made) {
  const bool again = std::any_of(all.begin(), all.end(),
                                 [&](const Made& earlier) { return earlier.same_place(made); });
  if (again) refuse_twice(made);
  all.push_back(std::move(made));
}

}  // namespace qplan
