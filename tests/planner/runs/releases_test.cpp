#include "planner/runs/releases.h"

#include <doctest/doctest.h>

#include "models/error.h"
#include "planner/runs/run_tables.h"
#include "tests/planner/runs/rows.h"

namespace qplan {
namespace {

const std::string kHeader = "column\tmatch\tpattern\twhere\tmonth\tsource\n";

RunDates dates(const Cells& changes) {
  const RunInputs in = *read(changes).inputs;
  return {in.month, in.release};
}

TEST_CASE("every release has a source") {
  const ReleaseTable table(run_table_text("releases"), "releases.tsv");
  CHECK(table.releases().size() >= 5);
  for (const Release& release : table.releases()) {
    CAPTURE(release.text);
    CHECK(release.source.size() > 10);
  }
}

TEST_CASE("a release that a row names is also its month; one of a publication is no release") {
  CHECK(dates({{"framework", "Megatron-Bridge (NeMo 26.04.01)"}}) == RunDates{202604, 202604});
  CHECK(dates({{"framework", "NeMo 25.04.rc2"}}) == RunDates{202504, 202504});
  CHECK(dates({{"framework", "NeMo"}}) == RunDates{202507, 0});
  CHECK(dates({{"framework", "NeMo MLPerf v5.0"}}) == RunDates{202507, 0});
  CHECK(dates({{"framework", "NeMo"},
               {"source_path_or_table", "README @commit 25.05 (blob 3197c34d)"}}) ==
        RunDates{202505, 202505});
  // A commit is no release, whatever digits it begins with.
  CHECK(dates({{"framework", "NeMo"}, {"source_path_or_table", "README @commit 23e00ed"}}) ==
        RunDates{202507, 0});
  CHECK(dates({{"framework", "Megatron-Core"}}) == RunDates{202608, 0});
  CHECK(dates({{"framework", "NeMo 25.13"}}) == RunDates{202507, 0});  // no such month
  CHECK(dates({}) == RunDates{});
}

TEST_CASE("a row of releases that is none is refused with its line") {
  const auto refused = [](const std::string& row, const char* sentence) {
    CHECK_THROWS_WITH_AS(ReleaseTable(kHeader + row, "t.tsv"), sentence, Error);
  };
  refused("colour\texact\tNeMo\t\t202507\ta page\n",
          "t.tsv:2: 'colour' is no column of measured runs");
  refused("framework\texact\tNeMo\t\t2507\ta page\n",
          "t.tsv:2: month '2507' is none such as 202412");
  refused("framework\texact\tNeMo\t\tnamed\ta page\n",
          "t.tsv:2: month 'named' is not in the pattern");
  refused("framework\texact\tNeMo {YY.MM}\t\t202507\ta page\n",
          "t.tsv:2: month '202507' is in the pattern, too");
  refused("framework\texact\tNeMo {YY.MM\t\tnamed\ta page\n",
          "t.tsv:2: phrase 'NeMo {YY.MM' opens a brace that it does not close");
  refused("framework\texact\tNeMo\twarp\t202507\ta page\n",
          "t.tsv:2: plan word 'warp' is unknown; a plan reads like 'tp1 pp1 dp1 zero0 mbs1 gbs1 "
          "seq4096'");
  refused("framework\texact\tNeMo\t\t202507\t\n", "t.tsv:2: phrase 'NeMo' has no source");
  refused("framework\texact\tNeMo\t\t202507\ta page\nframework\texact\tNeMo\t\t202508\ta page\n",
          "t.tsv:3: phrase 'NeMo' of framework stands here twice");
}

TEST_CASE("a pattern finds its phrase, what follows it, and a month") {
  const Pattern page(Match::contains, "_{YYYY-MM}_");
  CHECK(page.find("h100_2025-06_titan")->month == 202506);
  CHECK(page.find("h100_2025-06_titan")->rest == "titan");
  CHECK_FALSE(page.find("h100_2025-13_titan"));
  CHECK_FALSE(page.find("h100_2019-12_titan"));
  CHECK_FALSE(page.find("h100_2025-06"));
  CHECK(Pattern(Match::contains, "{YYYYMM}").find("x2013012024121")->month == 202412);
  CHECK(Pattern(Match::prefix, "a=").find("a=b=c")->rest == "b=c");
  CHECK_FALSE(Pattern(Match::prefix, "a=").find("ba="));
  CHECK(Pattern(Match::exact, "a").find("a"));
  CHECK_FALSE(Pattern(Match::exact, "a").find("ab"));
}

}  // namespace
}  // namespace qplan
