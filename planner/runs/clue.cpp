#include "planner/runs/clue.h"

#include <fmt/format.h>

#include "models/error.h"
#include "planner/runs/run_columns.h"

namespace qplan {

Clue read_clue(const CsvTable::Row& row) {
  const auto& cells = row.cells;
  const std::string &column = cells[0], &text = cells[2], &where = cells[3];
  if (!is_run_column(column)) {
    throw Error(fmt::format("'{}' is no column of measured runs", column));
  }
  if (text.empty()) throw Error("the phrase is empty");
  if (cells.back().empty()) throw Error(fmt::format("phrase '{}' has no source", text));
  return {column,          text, where, cells.back(), Pattern(from_word<Match>(cells[1]), text),
          Condition(where)};
}

void refuse_twice(const Clue& clue) {
  throw Error(fmt::format("phrase '{}' of {} stands here twice", clue.text, clue.column));
}

}  // namespace qplan
