#include "planner/runs/releases.h"

#include <fmt/format.h>

#include <array>

#include "models/error.h"
#include "planner/runs/run_tables.h"

namespace qplan {
namespace {

constexpr std::array<std::string_view, 6> kReleaseColumns{"column", "match", "pattern",
                                                          "where",  "month", "source"};

// "named" is 0.
int month_of(const std::string& text, const Pattern& pattern) {
  if ((text == "named") != pattern.names_month()) {
    throw Error(fmt::format("month '{}' {}", text,
                            text == "named" ? "is not in the pattern" : "is in the pattern, too"));
  }
  return text == "named" ? 0 : parse_month(text);
}

}  // namespace

ReleaseTable::ReleaseTable(std::string_view tsv, std::string_view where) {
  read_run_table(tsv, where, kReleaseColumns, [this](const CsvTable::Row& row) {
    Clue clue = read_clue(row);
    const int month = month_of(row.cells[4], clue.pattern);
    add_clue(releases_, Release{std::move(clue), month});
  });
}

RunDates ReleaseTable::dates_of(const RunRow& row, const RunInputs& in) const {
  for (const Release& release : releases_) {
    const auto found = release.pattern.find(row.text(release.column));
    if (!found || !release.condition.holds(row, in)) continue;
    return {release.month > 0 ? release.month : found->month, found->month};
  }
  return {};
}

const ReleaseTable& known_releases() {
  return built_in_table<ReleaseTable>("releases");
}

}  // namespace qplan
