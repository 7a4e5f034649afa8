#pragma once
// Numbers as people read them, tables with a units row, and bars: text for a terminal or a file.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/units.h"

namespace qplan {

// `digits` significant digits, never in powers of ten below 1e15: 0.0123, 4.57, 12 346.
std::string significant(double value, int digits = 3);
// Thousands set apart: 1234567 is "1 234 567".
std::string grouped(std::int64_t value);
std::string human_bytes(Bytes bytes);     // "61.3 GiB", "512 MiB", "1.2 TiB"
std::string human_seconds(Seconds time);  // "12.0 us", "45.1 ms", "1.23 s", "3.4 h", "12.1 days"
std::string human_count(double count);    // "30.5B" parameters, "4.2M" tokens, "256"
std::string percent(double share);        // 0.512 is "51.2"
std::string fixed(double value, int decimals);  // "12.35"

std::string_view trimmed(std::string_view text);  // without spaces at its ends
std::string lower_case(std::string_view text);    // letters A to Z

// Columns a text takes on a terminal: code points, without ANSI colours.
std::size_t display_width(std::string_view text);

enum class Align : std::uint8_t { left, right };

// A table: headings, a row of units below them, then rows. Widths fit the contents.
class Table {
 public:
  struct Column {
    std::string heading, unit;  // unit without brackets; empty: none
    Align align = Align::right;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell a column; fewer leave the rest empty.
  void row(std::vector<std::string> cells);
  // A line of its own below the row before it, indented and as long as it is.
  void note(std::string line);
  // Where it would be wider than `most` columns (0: any width is right) each row is a paragraph
  // that names what it says: "1  step 1.39 s, MFU 33.1 %".
  [[nodiscard]] std::string text(std::size_t most = 0) const;

 private:
  [[nodiscard]] std::string stacked(std::size_t most) const;

  struct Line {
    std::vector<std::string> cells;
    std::string note;
  };
  std::vector<Column> columns_;
  std::vector<Line> lines_;
};

// One part of a bar: its letter is drawn over its share of the width.
struct BarPart {
  char letter = '#';
  double share = 0;
};

// "WWWWGGAAAAAA....": shares of `width` characters by largest remainder, what they leave of 1 as
// '.'. Shares that exceed 1 in sum are scaled down, and the bar ends in '>'.
std::string bar(const std::vector<BarPart>& parts, int width);

// Breaks a text into lines of at most `width` columns at spaces; continuation lines are indented.
std::string wrapped(std::string_view text, std::size_t width, std::size_t indent = 0);

}  // namespace qplan
