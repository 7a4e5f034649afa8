#pragma once
// The project's own tables about runs (*.tsv beside this file), compiled into the program.

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "models/csv.h"
#include "models/error.h"

namespace qplan {

// Calls `read` for each row of a table with exactly these columns; an Error that it throws gets
// file and line.
void read_run_table(std::string_view tsv, std::string_view where,
                    std::span<const std::string_view> columns,
                    const std::function<void(const CsvTable::Row&)>& read);

std::string run_table_text(std::string_view name);  // "phrases" of phrases.tsv

// A built-in table, read once. A row that it refuses is our own mistake, and a unit test's.
template <class Table>
const Table& built_in_table(std::string_view name) {
  static const Table table = [name] {
    try {
      return Table(run_table_text(name), std::string(name) + ".tsv");
    } catch (const Error& error) {
      check_failed(error.what(), std::source_location::current());
    }
  }();
  return table;
}

}  // namespace qplan
