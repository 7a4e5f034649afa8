#include <doctest/doctest.h>

#include "models/text.h"
#include "tests/cli/run.h"

using namespace qplan;

namespace {

// Writes a plan of two stages and four microbatches.
void write_plan(const std::string& file) {
  REQUIRE(run("predict --model tiny --gpus 2 --pp 2 --seq-len 512 --global-batch-size 4 -o " + file)
              .code == 0);
}

}  // namespace

TEST_CASE("a plan's step can be traced and drawn") {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan.json"), trace = folder.file("trace.json");
  write_plan(plan);
  const Ran ran = run("trace " + plan + " --text --columns 60 -o " + trace);
  CHECK(ran.code == 0);
  CHECK(ran.says("one step"));
  CHECK(ran.out.find("\x1b") == std::string::npos);  // colours are for terminals
  const Json events = read_json_file(trace)["traceEvents"];
  int forwards = 0;
  for (const Json& event : events) forwards += event.value("cat", "") == "forward" ? 1 : 0;
  CHECK(forwards == 8);
}

TEST_CASE("dualpipe is drawn the same from both ends, even microbatches down and odd ones up") {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan.json");
  REQUIRE(run("predict --model llama3-8b --framework qplan --gpus 4 --pp 4 --schedule dualpipe "
              "--seq-len 1024 --global-batch-size 8 --hardware b200 -o " +
              plan)
              .code == 0);
  const Ran ran = run("trace " + plan + " --text --columns 100");
  REQUIRE(ran.code == 0);
  std::vector<std::string> rows;
  for (const char* rank : {"\n0 ", "\n1 ", "\n2 ", "\n3 "}) {
    const std::size_t begin = ran.out.find(rank);
    REQUIRE(begin != std::string::npos);
    rows.push_back(ran.out.substr(begin + 3, ran.out.find('\n', begin + 1) - begin - 3));
  }
  // A step begins by clearing its gradients, which is drawn as the optimizer's.
  CHECK(rows[0].substr(rows[0].find_first_not_of(".o")).starts_with("0>"));
  CHECK(rows[3].substr(rows[3].find_first_not_of(".o")).starts_with("1>"));
  for (std::string* row : {&rows[2], &rows[3]}) {
    for (char& c : *row) {
      if (c >= '0' && c <= '9') c = static_cast<char>('0' + ((c - '0') ^ 1));
    }
  }
  CHECK(rows[0] == rows[3]);
  CHECK(rows[1] == rows[2]);
}

TEST_CASE("ops are traced for one rank") {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan.json"), trace = folder.file("trace.json");
  write_plan(plan);
  REQUIRE(run("trace " + plan + " --ops --rank 1 -o " + trace).code == 0);
  bool gemm = false;
  const Json events = read_json_file(trace)["traceEvents"];
  for (const Json& event : events) {
    if (event["ph"] != "X") continue;
    CHECK(event["pid"] == 1);
    gemm = gemm || event["name"].get<std::string>().starts_with("gemm");
  }
  CHECK(gemm);
  CHECK(run("trace " + plan + " --rank 2 -o " + trace).code == 2);
  // A drawing has all ranks, and would pass over both.
  CHECK(run("trace " + plan + " --text --rank 1").code == 2);
  CHECK(run("trace " + plan + " --text --ops").code == 2);
}

TEST_CASE("a trace wants a plan and a place") {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan.json");
  write_plan(plan);
  CHECK(run("trace " + plan).says("-o FILE"));
  CHECK(run("trace --text").says("needs a plan file"));
}

TEST_CASE("a plan that cannot run is not traced") {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan.json");
  CHECK(run("predict --model tiny --gpus 6 --tp 3 -o " + plan).code == 1);
  const Ran ran = run("trace " + plan + " --text");
  CHECK(ran.code == 1);
  CHECK(ran.says("cannot run"));
}

TEST_CASE("a drawing and its legend fit the terminal, and the legend 80 columns") {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan.json");
  write_plan(plan);
  for (const int columns : {50, 80, 200}) {
    CAPTURE(columns);
    const std::string out =
        run("trace " + plan + " --text --columns " + std::to_string(columns)).out;
    std::istringstream text(out);
    for (std::string row; std::getline(text, row);) {
      CAPTURE(row);
      CHECK(display_width(row) <= static_cast<std::size_t>(columns));
    }
    const std::size_t legend = out.find("numbers: microbatch");
    REQUIRE(legend != std::string::npos);
    CHECK(out.find("idle", legend) != std::string::npos);
    std::istringstream words(out.substr(legend));
    for (std::string row; std::getline(words, row);) CHECK(display_width(row) <= 80);
  }
}
