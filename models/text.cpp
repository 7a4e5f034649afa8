#include "models/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "models/ascii.h"
#include "models/error.h"

namespace qplan {
namespace {

struct Scale {
  double unit;
  std::string_view name;
};

// The largest unit in which the value is at least 1 once rounded; scales ascend.
template <std::size_t N>
std::string in_scale(double value, const std::array<Scale, N>& scales, int digits) {
  const Scale* best = &scales[0];
  for (const Scale& scale : scales) {
    if (std::abs(value) >= scale.unit * (1 - 0.5 * std::pow(10, -digits))) best = &scale;
  }
  return significant(value / best->unit, digits) + std::string(best->name);
}

}  // namespace

std::string fixed(double value, int decimals) {
  const std::string text = fmt::format("{:.{}f}", value, decimals);
  // "-0.00" is only noise.
  return text.find_first_not_of("-0.") == std::string::npos && text[0] == '-' ? text.substr(1)
                                                                              : text;
}

std::string grouped(std::int64_t value) {
  std::string digits = fmt::format("{}", value);
  const std::size_t first = digits[0] == '-' ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3; at -= 3) digits.insert(at - 3, " ");
  return digits;
}

std::string significant(double value, int digits) {
  if (!std::isfinite(value)) return value > 0 ? "inf" : value < 0 ? "-inf" : "nan";
  if (value == 0) return "0";
  // The exponent after rounding: 9.996 has two digits before the point when three are kept.
  const std::string scientific = fmt::format("{:.{}e}", value, digits - 1);
  const int exponent = std::atoi(scientific.c_str() + scientific.find('e') + 1);
  const int decimals = std::max(0, digits - 1 - exponent);
  if (decimals > 0 || std::abs(value) < 1e4) return fixed(value, decimals);
  if (std::abs(value) >= 1e15) return scientific;
  return grouped(std::llround(value));
}

std::string human_bytes(Bytes bytes) {
  static constexpr std::array<Scale, 6> kScales{{{1, " B"},
                                                 {1024, " KiB"},
                                                 {kMiB, " MiB"},
                                                 {kGiB, " GiB"},
                                                 {kGiB * 1024, " TiB"},
                                                 {kGiB * kMiB, " PiB"}}};
  return in_scale(bytes.value(), kScales, 3);
}

std::string human_seconds(Seconds time) {
  const double s = time.value();
  if (std::abs(s) >= 2 * 86400) return significant(s / 86400, 3) + " days";
  if (std::abs(s) >= 2 * 3600) return significant(s / 3600, 3) + " h";
  if (std::abs(s) >= 5 * 60) return significant(s / 60, 3) + " min";
  static constexpr std::array<Scale, 3> kScales{{{1e-6, " us"}, {1e-3, " ms"}, {1, " s"}}};
  return in_scale(s, kScales, 3);
}

std::string human_count(double count) {
  static constexpr std::array<Scale, 5> kScales{
      {{1, ""}, {1e3, "k"}, {1e6, "M"}, {1e9, "B"}, {1e12, "T"}}};
  if (std::abs(count) < 1000 && count == std::floor(count)) return fmt::format("{:.0f}", count);
  return in_scale(count, kScales, 3);
}

std::string percent(double share) {
  return fixed(100 * share, 1);
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

std::string lower_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {  // ESC [ ... m
      while (i < text.size() && text[i] != 'm') ++i;
      continue;
    }
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80) ++width;
  }
  return width;
}

// ---- Table ----

void Table::row(std::vector<std::string> cells) {
  QPLAN_CHECK(cells.size() <= columns_.size(), "a table row has at most one cell a column");
  cells.resize(columns_.size());
  lines_.push_back({std::move(cells), ""});
}

void Table::note(std::string line) {
  lines_.push_back({{}, std::move(line)});
}

namespace {

// One that has lines of its own is as wide as it should be.
std::string note_text(const std::string& note, std::size_t most) {
  const bool fits =
      most == 0 || note.find('\n') != std::string::npos || display_width(note) <= most;
  return fits ? note + '\n' : wrapped(note, most, 4);
}

}  // namespace

std::string Table::stacked(std::size_t most) const {
  std::string result;
  for (const Line& line : lines_) {
    if (line.cells.empty()) {
      result += note_text(line.note, most);
      continue;
    }
    std::string row;
    for (std::size_t i = 0; i < line.cells.size(); ++i) {
      const std::string_view cell = trimmed(line.cells[i]);
      if (cell.empty()) continue;
      const Column& column = columns_[i];
      // What a row is called needs no heading.
      if (i > 0) row += i == 1 ? "  " : ", ";
      if (i > 0 && !column.heading.empty()) row += column.heading + ' ';
      row += cell;
      if (!column.unit.empty()) row += ' ' + column.unit;
    }
    result += wrapped(row, most, 2);
  }
  return result;
}

std::string Table::text(std::size_t most) const {
  std::vector<std::string> headings, units;
  for (const Column& column : columns_) {
    headings.push_back(column.heading);
    units.push_back(column.unit.empty() ? "" : '(' + column.unit + ')');
  }
  std::vector<std::size_t> widths(columns_.size());
  const auto widen = [&](const std::vector<std::string>& cells) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      widths[i] = std::max(widths[i], display_width(cells[i]));
    }
  };
  widen(headings);
  widen(units);
  for (const Line& line : lines_) widen(line.cells);
  const std::size_t between = columns_.empty() ? 0 : 2 * (columns_.size() - 1);
  if (most > 0 && std::accumulate(widths.begin(), widths.end(), between) > most) {
    return stacked(most);
  }

  std::string result;
  const auto add = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (i > 0) line += "  ";
      const std::string space(widths[i] - display_width(cells[i]), ' ');
      line += columns_[i].align == Align::left ? cells[i] + space : space + cells[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + '\n';
  };
  add(headings);
  const auto has_text = [](const std::string& s) { return !s.empty(); };
  if (std::any_of(units.begin(), units.end(), has_text)) add(units);
  for (const Line& line : lines_) {
    if (line.cells.empty()) {
      result += note_text(line.note, most);
    } else {
      add(line.cells);
    }
  }
  return result;
}

// ---- bars ----

std::string bar(const std::vector<BarPart>& parts, int width) {
  double sum = 0;
  for (const BarPart& part : parts) sum += std::max(0.0, part.share);
  // A share that rounding pushed over 1 is not an overflow.
  const bool overflows = sum > 1 + 1e-9;
  const double scale = static_cast<double>(width) / std::max(1.0, sum);

  struct Cell {
    int whole;
    double rest;
    std::size_t part;
  };
  std::vector<Cell> cells;
  int used = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double exact = std::max(0.0, parts[i].share) * scale;
    cells.push_back({static_cast<int>(exact), exact - std::floor(exact), i});
    used += cells.back().whole;
  }
  // Characters that the shares fill together; the fractions with the largest rests get them.
  const int filled = std::min(width, static_cast<int>(std::lround(sum * scale)));
  std::vector<Cell*> by_rest;
  for (Cell& cell : cells) by_rest.push_back(&cell);
  std::stable_sort(by_rest.begin(), by_rest.end(),
                   [](const Cell* a, const Cell* b) { return a->rest > b->rest; });
  for (Cell* cell : by_rest) {
    if (used >= filled) break;
    if (cell->rest <= 0) continue;
    ++cell->whole;
    ++used;
  }
  std::string text;
  for (const Cell& cell : cells) {
    text.append(static_cast<std::size_t>(cell.whole), parts[cell.part].letter);
  }
  text.resize(static_cast<std::size_t>(width), '.');
  if (overflows && width > 0) text.back() = '>';
  return text;
}

namespace {

// "1.02 s" stays together: a number and the unit after it.
bool binds(std::string_view word, std::string_view next) {
  constexpr std::size_t kLongestUnit = 5;  // "days,"
  return !word.empty() && is_digit(word.back()) && !next.empty() && is_letter(next.front()) &&
         next.size() <= kLongestUnit;
}

}  // namespace

std::string wrapped(std::string_view text, std::size_t width, std::size_t indent) {
  std::vector<std::string> words;
  std::string_view last;  // of the word before
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t to = std::min(text.find(' ', from), text.size());
    const std::string_view word = text.substr(from, to - from);
    from = to + 1;
    if (binds(last, word)) {
      words.back() += ' ';
      words.back() += word;
    } else {
      words.emplace_back(word);
    }
    last = word;
  }
  std::string result, line;
  bool line_has_word = false;
  for (const std::string& word : words) {
    if (line_has_word && display_width(line) + 1 + display_width(word) > width) {
      result += line + '\n';
      line.assign(indent, ' ');
      line_has_word = false;
    }
    if (line_has_word) line += ' ';
    line += word;
    line_has_word = true;
  }
  if (line_has_word) result += line + '\n';
  return result;
}

}  // namespace qplan
