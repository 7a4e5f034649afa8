#include <doctest/doctest.h>

#include <cmath>

#include "tests/cli/run.h"

using namespace qplan;

namespace {

Ran compare(const std::string& a, const std::string& b, const std::string& more = "") {
  std::vector<std::string> args{"compare", a, b, "--model", "llama3-8b", "--gpus", "16", "--json"};
  std::istringstream in(more);
  for (std::string word; in >> word;) args.push_back(word);
  return run(args);
}

double sum_of(const Json& parts) {
  double sum = 0;
  for (const auto& [key, value] : parts.items()) sum += value.get<double>();
  return sum;
}

}  // namespace

TEST_CASE("the steps of a comparison sum to the difference, and so do their parts") {
  const Ran ran = compare("tp1 pp1 mbs1 zero1", "tp2 pp2 mbs2 zero1 sp");
  REQUIRE(ran.code == 0);
  const Json found = ran.json();
  REQUIRE(found["way"].size() >= 3);
  for (const char* key : {"step_time_s", "device_peak_gib"}) {
    double sum = 0;
    for (const Json& step : found["way"]) sum += step[key].get<double>();
    CHECK(sum == doctest::Approx(found["delta"][key].get<double>()));
  }
  const double a = found["a"]["prediction"]["step_time_s"],
               b = found["b"]["prediction"]["step_time_s"];
  CHECK(found["delta"]["step_time_s"].get<double>() == doctest::Approx(b - a));
  CHECK(sum_of(found["delta"]["time"]) == doctest::Approx(b - a));
  CHECK(sum_of(found["delta"]["memory"]) ==
        doctest::Approx(found["delta"]["device_peak_gib"].get<double>()));
}

TEST_CASE("what a word does alone is what predict says of the plan with it") {
  const Json found = compare("tp1 mbs1", "tp1 mbs2 recompute=full").json();
  REQUIRE(found["differences"].size() == 2);
  for (const Json& d : found["differences"]) {
    const std::string word = d["word"];
    CAPTURE(word);
    const std::string line = word == "recompute" ? "tp1 mbs1 recompute=full" : "tp1 mbs2";
    const Json changed =
        run({"predict", line, "--model", "llama3-8b", "--gpus", "16", "--json"}).json();
    const double a = found["a"]["prediction"]["step_time_s"];
    CHECK(d["alone"]["step_time_s"].get<double>() ==
          doctest::Approx(changed["step_time_s"].get<double>() - a));
  }
}

TEST_CASE("words that cannot change alone change together") {
  // A pipeline of one stage has no chunks, and chunks need the interleaved schedule.
  const Json found = compare("tp1 pp2 mbs1", "tp1 pp2 mbs1 interleaved vpp2").json();
  REQUIRE(found["way"].size() == 1);
  CHECK(found["way"][0]["words"].size() == 2);
  CHECK_FALSE(found["differences"][0]["refused"].is_null());
}

TEST_CASE("the machine is one of the things that differ") {
  const TemporaryFolder folder;
  const std::string here = folder.path() + "/here.json", there = folder.path() + "/there.json";
  const std::string line = "predict tp2 --model llama3-8b --gpus 16 ";
  REQUIRE(run(line + "-o " + here).code == 0);
  REQUIRE(run(line + "--hardware h200-sxm -o " + there).code == 0);
  const Json found = run({"compare", here, there, "--json"}).json();
  REQUIRE(found["differences"].size() == 1);
  CHECK(found["differences"][0]["word"] == "hardware");
  CHECK(found["differences"][0]["b"] == "h200-sxm");
}

TEST_CASE("a plan compared with itself differs in nothing") {
  const Ran text = run({"compare", "tp1", "tp1", "--model", "tiny", "--gpus", "8"});
  CHECK(text.code == 0);
  CHECK(text.says("A and B are the same plan."));
}

TEST_CASE("a plan that cannot run is told, with what differs") {
  const Ran ran = run({"compare", "tp1", "tp3", "--model", "tiny", "--gpus", "8"});
  CHECK(ran.code == 1);
  CHECK(ran.says("cannot run"));
  CHECK(ran.says("tp 1 -> 3"));
}

TEST_CASE("--best is the plan that search finds") {
  const std::vector<std::string> job{"--model", "tiny", "--gpus", "8", "--json"};
  std::vector<std::string> args{"compare", "tp2 zero1", "--best"}, search{"search", "--top", "1"};
  args.insert(args.end(), job.begin(), job.end());
  search.insert(search.end(), job.begin(), job.end());
  const Json found = run(args).json();
  CHECK(found["b"]["prediction"]["short"] == run(search).json()["plans"][0]["short"]);
  CHECK(found["speedup"].get<double>() >= 1);
}

TEST_CASE("a framework's files are compared with a plan file") {
  const TemporaryFolder folder;
  const std::string plan = folder.path() + "/plan.json", job = folder.path() + "/job";
  REQUIRE(run({"predict", "tp2 pp2 mbs1 sp", "--model", "llama3-8b", "--gpus", "16", "-o", plan})
              .code == 0);
  REQUIRE(run({"emit", plan, "--framework", "megatron", "--out", job}).code == 0);
  const Ran ran = run({"compare", job + "/args.sh," + job + "/train.sh", plan, "--model",
                       "llama3-8b", "--gpus", "16", "--json"});
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  CHECK(ran.json()["speedup"].get<double>() == doctest::Approx(1).epsilon(0.01));
}

TEST_CASE("compare wants two plans, or one with --best") {
  CHECK(run("compare tp1 --model tiny --gpus 8").code == 2);
  CHECK(run("compare --best --model tiny --gpus 8").code == 2);
}

TEST_CASE("the rounding of sums is no difference") {
  const Ran ran = run({"compare", "tp8 pp2 mbs1 gbs64", "tp8 pp2 mbs1 gbs128", "--model",
                       "llama3-70b", "--gpus", "64"});
  REQUIRE(ran.code == 0);
  CHECK(ran.says("pipeline bubble"));
  CHECK_FALSE(ran.says("0.000000000"));
}

TEST_CASE("one file says no plan, several say none") {
  const TemporaryFolder folder;
  const std::string empty = folder.file("empty.json");
  write_file_atomically(empty, "{\"a\": 1}");
  const Ran ran = run({"compare", empty, "tp1", "--model", "tiny", "--gpus", "8"});
  CHECK(ran.code == 2);
  CHECK(ran.says("empty.json says no plan"));
}
