#include "planner/runs/run_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "models/embedded.h"

namespace qplan {

extern const EmbeddedFile run_tables[];
extern const std::size_t run_tables_count;

void read_run_table(std::string_view tsv, std::string_view where,
                    std::span<const std::string_view> columns,
                    const std::function<void(const CsvTable::Row&)>& read) {
  const CsvTable table = parse_tsv(tsv, where);
  if (!std::equal(columns.begin(), columns.end(), table.columns.begin(), table.columns.end())) {
    throw Error(fmt::format("{}: the columns must be {}", where, fmt::join(columns, ", ")));
  }
  for (const CsvTable::Row& row : table.rows) {
    try {
      read(row);
    } catch (const Error& error) {
      throw Error(fmt::format("{}:{}: {}", where, row.line, error.what()));
    }
  }
}

std::string run_table_text(std::string_view name) {
  const std::span tables(run_tables, run_tables_count);
  const auto found = std::find_if(tables.begin(), tables.end(),
                                  [name](const EmbeddedFile& file) { return file.name == name; });
  QPLAN_CHECK(found != tables.end(), "a table about runs of that name is built in");
  return found->text();
}

}  // namespace qplan
