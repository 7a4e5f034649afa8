#include <doctest/doctest.h>

#include "tests/cli/run.h"

using namespace qplan;

namespace {

const std::string kJob = " --plan tp2 --model llama3-8b --gpus 8";

std::vector<Json> lines_of(const Ran& ran) {
  std::vector<Json> lines;
  std::istringstream in(ran.out);
  for (std::string line; std::getline(in, line);) lines.push_back(parse_json(line, "a line"));
  return lines;
}

// A log of Megatron's whose step i takes `factor(i)` times what is predicted.
template <class Factor>
std::string log_of(int steps, Factor factor) {
  const double s = run("predict tp2 --model llama3-8b --gpus 8 --json").json()["step_time_s"];
  std::string text;
  for (int i = 1; i <= steps; ++i) {
    text += " iteration " + std::to_string(i) +
            "/ 100 | elapsed time per iteration (ms): " + std::to_string(1000 * s * factor(i)) +
            " |\n";
  }
  return text;
}

}  // namespace

TEST_CASE("a run as it was predicted raises no alert") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/train.log";
  write_file_atomically(log, log_of(30, [](int) { return 1.0; }));
  const Ran ran = run("watch " + log + kJob);
  CHECK(ran.code == 0);
  const auto lines = lines_of(ran);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0]["inside"] == true);
  CHECK(lines[0]["steps"] == 28);
}

TEST_CASE("a run that becomes slow at once is told at the step where it is sure") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/train.log";
  write_file_atomically(log, log_of(60, [](int i) { return i <= 40 ? 1.0 : 1.5; }));
  const Ran ran = run("watch " + log + kJob);
  CHECK(ran.code == 1);
  bool jump = false;
  for (const Json& line : lines_of(ran)) {
    if (!line.contains("alert") || line["alert"] != "jump") continue;
    jump = true;
    CHECK(line["step"] == 45);
  }
  CHECK(jump);
}

TEST_CASE("a command is watched as its log is, and its failure is a launch that failed") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/train.log";
  write_file_atomically(log, log_of(60, [](int i) { return i <= 40 ? 1.0 : 1.5; }));
  const Ran ran = run("watch" + kJob + " -- cat " + log);
  CHECK(ran.code == 1);
  CHECK(ran.out == run("watch " + log + kJob).out);
  CHECK(ran.err.find("iteration 60/") != std::string::npos);
  CHECK(run("watch" + kJob + " -- false").code == 3);
}

TEST_CASE("watch needs a log or a command") {
  CHECK(run("watch" + kJob).code == 2);
  CHECK(run("watch /nowhere.log" + kJob).code == 2);
}

TEST_CASE("a log without a step is said to be none") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/train.log";
  for (const char* text :
       {"", "loss: 3\n", " iteration 1/ 9 | elapsed time per iteration (ms): 0 |\n",
        " iteration 1/ 9 | elapsed time per iteration (ms): -5 |\n",
        " iteration 1/ 9 | elapsed time per iteration (ms): nan |\n"}) {
    CAPTURE(text);
    write_file_atomically(log, text);
    const Ran ran = run("watch " + log + kJob);
    CHECK(ran.code == 2);
    CHECK(ran.out.empty());
    CHECK(ran.says("of no step how long it took"));
    CHECK(run("watch" + kJob + " -- cat " + log).code == 2);
  }
  // Two steps are warm-up, and steps.
  write_file_atomically(log, log_of(2, [](int) { return 1.0; }));
  const Ran two = run("watch " + log + kJob);
  CHECK(two.code == 0);
  CHECK(lines_of(two)[0]["inside"].is_null());
}

TEST_CASE("a log of another batch is refused, and a command that logs it runs on") {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/train.log";
  std::string text;
  for (int i = 1; i <= 9; ++i) {
    text += " iteration " + std::to_string(i) +
            "/ 9 | elapsed time per iteration (ms): 900 | global batch size: 96 |\n";
  }
  write_file_atomically(log, text);
  const std::string batch = " --global-batch-size 48";
  const Ran ran = run("watch " + log + kJob + batch);
  CHECK(ran.code == 2);
  CHECK(ran.out.empty());
  CHECK(ran.says("a global batch of 96, and the plan has 48"));
  const Ran command = run("watch" + kJob + batch + " -- cat " + log);
  CHECK(command.code == 2);
  CHECK(command.says("iteration 9/"));
  CHECK(run("watch " + log + kJob + " --global-batch-size 96").code != 2);
}
