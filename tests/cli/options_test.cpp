#include "cli/options.h"

#include <doctest/doctest.h>

#include <sstream>

#include "models/error.h"

using namespace qplan;

namespace {

using Numbers = std::vector<std::int64_t>;

Numbers numbers(const std::string& text, RangeStep step = RangeStep::one) {
  return read_numbers("--n", text, 0, 100000, step);
}

std::string complaint(const std::vector<std::string>& args) {
  std::int64_t gpus = 0;
  double price = 0, tokens = 0;
  std::string degrees;
  bool json = false;
  CommandLine line("search", "A search.", "qplan search");
  line.group("Cluster");
  line.option({"--gpus", "COUNT", "GPUs", "8"}, set_whole(gpus, 1, 4096));
  line.option({"--price", "USD", "price", ""}, set_number(price, 0, 100));
  line.option({"--tokens", "COUNT", "tokens", ""}, set_count(tokens, 1, 1e15));
  line.option({"--tp", "RANKS,...", "degrees", ""}, set_text(degrees));
  line.flag("--json", "JSON", json);
  std::ostringstream out;
  try {
    line.parse(args, out);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("lists and ranges of numbers may be mixed") {
  CHECK(numbers("4") == Numbers{4});
  CHECK(numbers("2,4,8") == Numbers{2, 4, 8});
  CHECK(numbers("0..3") == Numbers{0, 1, 2, 3});
  CHECK(numbers("1..2,8") == Numbers{1, 2, 8});
  CHECK(numbers("8..64", RangeStep::doubling) == Numbers{8, 16, 32, 64});
  CHECK(numbers("8..100", RangeStep::doubling) == Numbers{8, 16, 32, 64});
}

TEST_CASE("a wrong list is refused with what was expected") {
  for (const char* text : {"", ",", "4,", "x", "3..", "..3", "1...3", "-1", "1e3", "100001"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(numbers(text), Error);
  }
  CHECK_THROWS_WITH(numbers("8..2"), "--n '8..2' runs backwards; write 2..8");
  CHECK_THROWS_AS(numbers("0..100000"), Error);
}

TEST_CASE("every wrong word on a command line is one sentence with the option's name") {
  CHECK(complaint({"--gpus", "8"}).empty());
  CHECK(complaint({"--gpus=8", "--json"}).empty());
  CHECK(complaint({"--gpus", "x"}) == "--gpus must be a whole number from 1 to 4096, not 'x'");
  CHECK(complaint({"--gpus", "0"}) == "--gpus must be a whole number from 1 to 4096, not '0'");
  CHECK(complaint({"--gpus", "8", "--gpus", "9"}) == "--gpus is given 2 times; give it once");
  CHECK(complaint({"--gpus"}) == "search --gpus needs a value; `qplan search --help` says which");
  CHECK(complaint({"--gpus", "--price", "2"}) ==
        "search --gpus needs a value (COUNT), and --price follows");
  CHECK(complaint({"--gpu", "8"}) == "search has no option '--gpu'; did you mean '--gpus'?");
  CHECK(complaint({"--price", "nan"}) == "--price must be a number from 0 to 100, not 'nan'");
  CHECK(complaint({"word"}).find("does not know what to do with 'word'") != std::string::npos);
}

TEST_CASE("an option that takes a list and is given twice is refused with the list to write") {
  CHECK(complaint({"--tp", "4,8"}).empty());
  CHECK(complaint({"--tp", "4", "--tp=2"}) ==
        "--tp is given 2 times; give it once, as a list: --tp 4,2");
  CHECK(complaint({"--tp", "1..3", "--tp", "8", "--tp", "4"}) ==
        "--tp is given 3 times; give it once, as a list: --tp 1..3,8,4");
}

TEST_CASE("an unknown option is named before a wrong value") {
  CHECK(complaint({"--gpus", "x", "--jsn"}) ==
        "search has no option '--jsn'; did you mean '--json'?");
}

TEST_CASE("counts take suffixes") {
  double tokens = 0;
  const SetOption set = set_count(tokens, 1, 1e18);
  set("--tokens", "1.5T");
  CHECK(tokens == 1.5e12);
  set("--tokens", "300B");
  CHECK(tokens == 300e9);
  set("--tokens", "2e12");
  CHECK(tokens == 2e12);
  CHECK_THROWS_AS(set("--tokens", "1X"), Error);
  CHECK_THROWS_AS(set("--tokens", "T"), Error);
  CHECK_THROWS_AS(set("--tokens", "-1B"), Error);
}
