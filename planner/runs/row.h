#pragma once
// A row of measured runs, read by column name. An empty cell says nothing.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include "models/csv.h"
#include "models/error.h"

namespace qplan {

// A cell that holds what its column cannot: the file is wrong, not merely beyond the model.
class BadCell : public Error {
 public:
  using Error::Error;
};

class RunRow {
 public:
  RunRow(const CsvTable& table, const CsvTable::Row& row) : table_(table), row_(row) {}

  // A column that the file lacks is empty; read_measured_runs() has asked for the needed ones.
  [[nodiscard]] const std::string& text(std::string_view column) const {
    static const std::string nothing;
    const auto found = std::find(table_.columns.begin(), table_.columns.end(), column);
    if (found == table_.columns.end()) return nothing;
    return row_.cells[static_cast<std::size_t>(found - table_.columns.begin())];
  }

  // A number above zero.
  [[nodiscard]] std::optional<double> number(std::string_view column) const {
    const std::string& cell = text(column);
    if (cell.empty()) return std::nullopt;
    double value = 0;
    const auto [end, code] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (code != std::errc{} || end != cell.data() + cell.size() || !(value > 0) || value > kMost) {
      fail(column, "a number above 0");
    }
    return value;
  }

  [[nodiscard]] std::optional<std::int64_t> whole(std::string_view column, std::int64_t low,
                                                  std::int64_t high) const {
    const std::string& cell = text(column);
    if (cell.empty()) return std::nullopt;
    std::int64_t value = 0;
    const auto [end, code] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (code != std::errc{} || end != cell.data() + cell.size() || value < low || value > high) {
      fail(column, fmt::format("a whole number from {} to {}", low, high));
    }
    return value;
  }

  [[nodiscard]] std::optional<bool> yes(std::string_view column) const {
    const auto value = whole(column, 0, 1);
    return value ? std::optional(*value == 1) : std::nullopt;
  }

  [[noreturn]] void fail(std::string_view column, std::string_view wanted) const {
    throw BadCell(fmt::format("{}: column {} must be {} or empty, not '{}'", place(), column,
                              wanted, shown(text(column))));
  }

  [[nodiscard]] std::string place() const { return fmt::format("{}:{}", table_.where, row_.line); }

  [[nodiscard]] std::size_t line() const { return row_.line; }

 private:
  static constexpr double kMost = 1e15;
  const CsvTable& table_;
  const CsvTable::Row& row_;
};

}  // namespace qplan
