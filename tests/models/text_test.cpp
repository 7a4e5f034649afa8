#include "models/text.h"

#include <doctest/doctest.h>

#include <cmath>

using namespace qplan;

TEST_CASE("a number keeps its significant digits and no powers of ten") {
  CHECK(significant(0) == "0");
  CHECK(significant(1.2345) == "1.23");
  CHECK(significant(0.0123456) == "0.0123");
  CHECK(significant(9.996) == "10.0");
  CHECK(significant(999.6) == "1000");
  CHECK(significant(-42.42) == "-42.4");
  CHECK(significant(123456.7) == "123 457");
  CHECK(significant(1187.4, 4) == "1187");
  CHECK(significant(std::nan("")) == "nan");
  CHECK(significant(HUGE_VAL) == "inf");
}

TEST_CASE("thousands are set apart") {
  CHECK(grouped(0) == "0");
  CHECK(grouped(999) == "999");
  CHECK(grouped(1000) == "1 000");
  CHECK(grouped(-1234567) == "-1 234 567");
}

TEST_CASE("bytes are said in the largest binary unit") {
  CHECK(human_bytes(Bytes(0)) == "0 B");
  CHECK(human_bytes(Bytes(1000)) == "1000 B");
  CHECK(human_bytes(mib(512)) == "512 MiB");
  CHECK(human_bytes(gib(61.34)) == "61.3 GiB");
  CHECK(human_bytes(gib(1024)) == "1.00 TiB");
}

TEST_CASE("times are said in the unit a person would choose") {
  CHECK(human_seconds(Seconds(12e-6)) == "12.0 us");
  CHECK(human_seconds(Seconds(0.0451)) == "45.1 ms");
  CHECK(human_seconds(Seconds(1.234)) == "1.23 s");
  CHECK(human_seconds(Seconds(-0.213)) == "-213 ms");
  CHECK(human_seconds(Seconds(600)) == "10.0 min");
  CHECK(human_seconds(Seconds(3600 * 5)) == "5.00 h");
  CHECK(human_seconds(Seconds(86400 * 12)) == "12.0 days");
}

TEST_CASE("counts take the suffixes of the field") {
  CHECK(human_count(256) == "256");
  CHECK(human_count(30.53e9) == "30.5B");
  CHECK(human_count(4194304) == "4.19M");
  CHECK(human_count(1e12) == "1.00T");
}

TEST_CASE("a fixed number never reads minus zero") {
  CHECK(fixed(-0.001, 2) == "0.00");
  CHECK(fixed(-0.01, 2) == "-0.01");
  CHECK(percent(0.5125) == "51.2");
}

TEST_CASE("a table aligns its columns under headings and units") {
  Table table({{"plan", "", Align::left}, {"step", "s"}});
  table.row({"tp4", "5.23"});
  table.row({"tp1 pp2", "12.10"});
  CHECK(table.text() ==
        "plan      step\n"
        "           (s)\n"
        "tp4       5.23\n"
        "tp1 pp2  12.10\n");
}

TEST_CASE("a table without units has no row for them, and notes stand alone") {
  Table table({{"a", ""}, {"b", ""}});
  table.row({"1"});
  table.note("a note far wider than the table");
  CHECK(table.text() == "a  b\n1\na note far wider than the table\n");
}

TEST_CASE("display width counts characters, not bytes or colours") {
  CHECK(display_width("abc") == 3);
  CHECK(display_width("µs") == 2);
  CHECK(display_width("\x1b[30;44m12\x1b[0m") == 2);
}

TEST_CASE("a bar divides its width by largest remainder") {
  CHECK(bar({{'W', 0.5}, {'G', 0.25}}, 8) == "WWWWGG..");
  CHECK(bar({{'a', 1.0 / 3}, {'b', 1.0 / 3}, {'c', 1.0 / 3}}, 10).size() == 10);
  CHECK(bar({{'a', 1.0 / 3}, {'b', 1.0 / 3}, {'c', 1.0 / 3}}, 10).find('.') == std::string::npos);
  CHECK(bar({}, 4) == "....");
}

TEST_CASE("a bar that overflows says so") {
  CHECK(bar({{'W', 1.0}, {'A', 1.0}}, 8) == "WWWWAAA>");
}

TEST_CASE("text is wrapped at spaces, with continuation lines indented") {
  CHECK(wrapped("one two three", 8, 2) == "one two\n  three\n");
  CHECK(wrapped("  kept indent", 80) == "  kept indent\n");
  CHECK(wrapped("", 80).empty());
}

TEST_CASE("a number is not torn from its unit") {
  CHECK(wrapped("it takes 1.02 s", 13) == "it takes\n1.02 s\n");
}
