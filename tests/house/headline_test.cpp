// The figures that pages quote of published runs are those of tests/data/runs/headline.json, which
// tests/cli/headline_test.cpp holds predictions to.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "models/csv.h"
#include "models/json.h"

namespace qplan {
namespace {

const std::string kFolder = QPLAN_SOURCE_DIR "/";
const std::string kRuns = kFolder + "tests/data/runs/";

Json headline() {
  return read_json_file(kRuns + "headline.json");
}

// "5.2%": one decimal, as `qplan accuracy` prints it.
std::string percent(const Json& figure) {
  return fmt::format("{:.1f}", figure.get<double>());
}

// A page in one line, so that a sentence may break where it likes.
std::string one_line(const std::string& page) {
  std::string line;
  for (const char c : page) {
    const bool blank = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (!blank || (!line.empty() && line.back() != ' ')) line += blank ? ' ' : c;
  }
  return line;
}

// Whether the parts stand in the text in this order, the first right after `start`, each later one
// within `reach` characters of the one before.
bool says(std::string_view text, std::string_view start, const std::vector<std::string>& parts) {
  constexpr std::size_t kReach = 160;
  for (std::size_t at = text.find(start); at != text.npos; at = text.find(start, at + 1)) {
    std::string_view rest = text.substr(at + start.size());
    const bool all = std::all_of(parts.begin(), parts.end(), [&](const std::string& part) {
      const std::size_t found = rest.substr(0, kReach + part.size()).find(part);
      if (found == rest.npos) return false;
      rest.remove_prefix(found + part.size());
      return true;
    });
    if (all) return true;
  }
  return false;
}

TEST_CASE("accuracy in README.md is quoted from the headline") {
  const std::string page = one_line(read_text_file(kFolder + "README.md"));
  const Json h = headline();
  const Json& time = h["step_time"];
  const Json& memory = h["memory"];
  const std::string of_time =
      fmt::format(" {}% / {}%", percent(time["median_percent"]), percent(time["p90_percent"]));
  const std::string of_memory = fmt::format(" {}%", percent(memory["median_percent"]));
  INFO("README.md must say 'step time of " << time["rows"]
                                           << " published runs', then 'median / "
                                              "90th percentile', then '"
                                           << of_time << "'; and 'memory of " << memory["rows"]
                                           << " published runs', then 'median', then '" << of_memory
                                           << "', each soon after the other");
  CHECK(says(page, fmt::format("step time of {} published runs", time["rows"].dump()),
             {"median / 90th percentile", of_time}));
  CHECK(says(page, fmt::format("memory of {} published runs", memory["rows"].dump()),
             {"median", of_memory}));
}

TEST_CASE("accuracy in the table of docs/accuracy.md is the headline's") {
  std::string page = read_text_file(kFolder + "docs/accuracy.md");
  const std::size_t begin = page.find("\n## published\n");
  REQUIRE(begin != page.npos);
  page = page.substr(begin, page.find("\n## ", begin + 1) - begin);
  const Json h = headline();
  const Json& time = h["step_time"];
  const Json& memory = h["memory"];
  INFO("scripts/accuracy writes the table and tests/data/runs/headline.json together");
  // The row of all runs: rows, priced, timed, median, mean, 90th percentile; and rows with memory.
  CHECK(says(page, "\n| all |",
             {fmt::format("| {} | {} |", time["rows"].dump(), percent(time["median_percent"])),
              fmt::format("| {} |", percent(time["p90_percent"]))}));
  CHECK(says(page,
             fmt::format("\n| all |  | {} | {} |", memory["rows"].dump(),
                         percent(memory["median_percent"])),
             {}));
}

TEST_CASE("accuracy is judged on runs whose every source is named in their notice") {
  const std::string notice = read_text_file(kRuns + "NOTICE.md");
  const CsvTable table = read_csv_file(kRuns + "published.csv");
  const auto column = [&table](std::string_view name) {
    const auto found = std::find(table.columns.begin(), table.columns.end(), name);
    REQUIRE(found != table.columns.end());
    return static_cast<std::size_t>(found - table.columns.begin());
  };
  const std::size_t id = column("id"), source = column("source_repo_or_paper");
  const std::size_t where = column("source_path_or_table");
  for (const CsvTable::Row& row : table.rows) {
    const std::string prefix = row.cells[id].substr(0, row.cells[id].find('-'));
    CAPTURE(row.cells[id]);
    CHECK(notice.find('`' + prefix) != notice.npos);
    std::string name = row.cells[source];
    if (name == "arXiv") name = row.cells[where].substr(0, row.cells[where].find(" Table"));
    name = name.substr(0, name.find(' ', name.find('/')));  // "NVIDIA/NeMo docs"
    CHECK(notice.find(name) != notice.npos);
    CHECK_FALSE(row.cells[where].empty());
  }
}

}  // namespace
}  // namespace qplan
