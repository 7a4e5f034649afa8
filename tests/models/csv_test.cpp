#include "models/csv.h"

#include <doctest/doctest.h>

#include "models/error.h"

namespace qplan {
namespace {

using Cells = std::vector<std::string>;

TEST_CASE("a quoted cell may hold commas, line breaks and doubled quotes") {
  const CsvTable table = parse_csv("a,b\n\"x, y\",\"two\nlines\"\n\"say \"\"no\"\"\",\n", "t.csv");
  CHECK(table.columns == Cells{"a", "b"});
  REQUIRE(table.rows.size() == 2);
  CHECK(table.rows[0].cells == Cells{"x, y", "two\nlines"});
  CHECK(table.rows[1].cells == Cells{"say \"no\"", ""});
  CHECK(table.rows[1].line == 4);  // the first row took two lines
}

TEST_CASE("lines end in LF, CRLF or with the file, and blank ones are no rows") {
  const CsvTable table = parse_csv("\xEF\xBB\xBFid,n\r\n1,2\r\n\r\n3,4", "t.csv");
  CHECK(table.columns == Cells{"id", "n"});
  REQUIRE(table.rows.size() == 2);
  CHECK(table.rows[0].cells == Cells{"1", "2"});
  CHECK(table.rows[1].cells == Cells{"3", "4"});
}

TEST_CASE("a line that begins with '#' is a remark, wherever it stands") {
  const CsvTable table = parse_csv("# of us\na,b\n#1,\"2\n3,#4\n", "t.csv");
  CHECK(table.columns == Cells{"a", "b"});
  REQUIRE(table.rows.size() == 1);
  CHECK(table.rows[0].cells == Cells{"3", "#4"});
  CHECK(table.rows[0].line == 4);
}

TEST_CASE("tab-separated values have neither quotes nor commas between them") {
  const CsvTable table = parse_tsv("# a remark\na\tb\n\n\"x, y\t\n", "t.tsv");
  CHECK(table.columns == Cells{"a", "b"});
  REQUIRE(table.rows.size() == 1);
  CHECK(table.rows[0].cells == Cells{"\"x, y", ""});
  CHECK(table.rows[0].line == 4);
  CHECK_THROWS_WITH_AS(parse_tsv("a\tb\n1\n", "t.tsv"),
                       "t.tsv:2:1: the row has 1 cells, and the header names 2 columns", Error);
  CHECK_THROWS_WITH_AS(parse_tsv("a\ta\n", "t.tsv"), "t.tsv:1:1: the header names column 'a' twice",
                       Error);
  CHECK_THROWS_AS(parse_tsv("# nothing\n", "t.tsv"), Error);
}

TEST_CASE("a malformed file is refused with file, line and column") {
  const auto refused = [](std::string_view text, const char* sentence) {
    CHECK_THROWS_WITH_AS(parse_csv(text, "t.csv"), sentence, Error);
  };
  refused("a,b\n1,\"x\n2,3\n", "t.csv:2:3: this quote is never closed; is the file cut off?");
  refused("a,b\n1,2,3\n", "t.csv:2:1: the row has 3 cells, and the header names 2 columns");
  refused("a,b\n1,x\"y\n",
          "t.csv:2:4: a quote inside a cell; quote the whole cell and double the quote");
  refused("a,b\n\"1\"x,2\n",
          "t.csv:2:4: text follows a closing quote; a comma or the end of the line must");
  refused("a,a\n", "t.csv:1:1: the header names column 'a' twice");
  refused("\n", "t.csv: the file is empty; expected a header of column names");
  refused(std::string_view("a\0b", 3), "t.csv: this is a binary file, not CSV");
}

}  // namespace
}  // namespace qplan
