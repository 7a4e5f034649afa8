#pragma once
// Comma-separated values as RFC 4180 has them: quoted cells may hold commas, line breaks and
// doubled quotes; lines end in LF or CRLF. The first record names the columns.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace qplan {

struct CsvTable {
  struct Row {
    std::size_t line = 0;            // of the file, where the row begins; from 1
    std::vector<std::string> cells;  // one a column
  };
  std::string where;  // the file's name, for messages
  std::vector<std::string> columns;
  std::vector<Row> rows;
};

// Throws Error with file, line and column of the text for a stray or unclosed quote, a row with
// other than the header's number of cells, a column named twice, or no header. Blank lines and
// lines that begin with '#' are skipped.
CsvTable parse_csv(std::string_view text, std::string_view where);
CsvTable read_csv_file(const std::string& path);

// The same of tab-separated values without quotes, as the project's own tables have them.
CsvTable parse_tsv(std::string_view text, std::string_view where);

}  // namespace qplan
