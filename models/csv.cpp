#include "models/csv.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"
#include "models/json.h"
#include "models/plan/plan_text.h"

namespace qplan {
namespace {

class Reader {
 public:
  Reader(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  [[nodiscard]] bool done() const { return at_ == text_.size(); }
  [[nodiscard]] std::size_t line() const { return line_; }

  // Whether a remark stood here, which is behind us now.
  bool skip_remark() {
    if (next() != '#') return false;
    while (!done() && take() != '\n') {
    }
    return true;
  }

  // The cells up to the end of a line. A blank line is one empty cell.
  std::vector<std::string> record() {
    std::vector<std::string> cells;
    for (;;) {
      cells.push_back(next() == '"' ? quoted_cell() : plain_cell());
      if (next() != ',') break;
      take();
    }
    end_of_line();
    return cells;
  }

  [[noreturn]] void fail(std::size_t line, std::size_t column, std::string_view sentence) const {
    throw Error(fmt::format("{}:{}:{}: {}", where_, line, column, sentence));
  }

 private:
  [[nodiscard]] char next() const { return done() ? '\n' : text_[at_]; }

  char take() {
    const char c = text_[at_++];
    ++column_;
    if (c == '\n') {
      ++line_;
      column_ = 1;
    }
    return c;
  }

  [[nodiscard]] bool at_line_end() const {
    return next() == '\n' || (next() == '\r' && text_.substr(at_, 2) == "\r\n");
  }

  void end_of_line() {
    if (!at_line_end()) {
      fail(line_, column_, "text follows a closing quote; a comma or the end of the line must");
    }
    while (!done() && take() != '\n') {
    }
  }

  std::string plain_cell() {
    std::string cell;
    while (!at_line_end() && next() != ',') {
      if (next() == '"') {
        fail(line_, column_, "a quote inside a cell; quote the whole cell and double the quote");
      }
      cell += take();
    }
    return cell;
  }

  std::string quoted_cell() {
    const std::size_t line = line_, column = column_;
    std::string cell;
    take();
    for (;;) {
      if (done()) fail(line, column, "this quote is never closed; is the file cut off?");
      const char c = take();
      if (c != '"') {
        cell += c;
      } else if (next() == '"' && !done()) {
        cell += take();
      } else {
        return cell;
      }
    }
  }

  std::string_view text_, where_;
  std::size_t at_ = 0, line_ = 1, column_ = 1;
};

void check_columns(const CsvTable& table) {
  const std::vector<std::string>& columns = table.columns;
  for (auto it = columns.begin(); it != columns.end(); ++it) {
    if (std::find(columns.begin(), it, *it) == it) continue;
    throw Error(fmt::format("{}:1:1: the header names column '{}' twice", table.where, shown(*it)));
  }
}

// The first names the columns.
void add_record(CsvTable& table, std::size_t line, std::vector<std::string> cells) {
  if (table.columns.empty()) {
    table.columns = std::move(cells);
    check_columns(table);
    return;
  }
  if (cells.size() != table.columns.size()) {
    throw Error(fmt::format("{}:{}:1: the row has {} cells, and the header names {} columns",
                            table.where, line, cells.size(), table.columns.size()));
  }
  table.rows.push_back({line, std::move(cells)});
}

void require_header(const CsvTable& table) {
  if (!table.columns.empty()) return;
  throw Error(fmt::format("{}: the file is empty; expected a header of column names", table.where));
}

}  // namespace

CsvTable parse_csv(std::string_view text, std::string_view where) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  if (text.find('\0') != std::string_view::npos) {
    throw Error(fmt::format("{}: this is a binary file, not CSV", where));
  }
  CsvTable table;
  table.where = where;
  Reader reader(text, where);
  while (!reader.done()) {
    if (reader.skip_remark()) continue;
    const std::size_t line = reader.line();
    std::vector<std::string> cells = reader.record();
    if (cells.size() == 1 && cells.front().empty()) continue;
    add_record(table, line, std::move(cells));
  }
  require_header(table);
  return table;
}

CsvTable read_csv_file(const std::string& path) {
  return parse_csv(read_text_file(path), path);
}

CsvTable parse_tsv(std::string_view text, std::string_view where) {
  CsvTable table;
  table.where = where;
  std::size_t number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    if (line.empty() || line.front() == '#') continue;
    std::vector<std::string> cells;
    for (const std::string_view cell : split(line, '\t')) cells.emplace_back(cell);
    add_record(table, number, std::move(cells));
  }
  require_header(table);
  return table;
}

}  // namespace qplan
