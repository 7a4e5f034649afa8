// --pods: networks that are thinner between pods.

#include <doctest/doctest.h>

#include "tests/cli/run.h"
#include "tests/temporary_folder.h"

using namespace qplan;

namespace {

const std::string kPredict =
    "predict --model llama3-8b --gpus 64 --pp 4 --global-batch-size 64 --seq-len 4096 ";

double step(const std::string& options) {
  return run(kPredict + options + " --json").json()["step_time_s"].get<double>();
}

}  // namespace

TEST_CASE("stages in other pods wait for the links between") {
  const double flat = step("");
  CHECK(step("--pods 64:50") == flat);
  CHECK(step("--pods 16:1") == flat);
  CHECK(step("--pods 16:50") > flat);
  CHECK(step("--pods 16:50") > step("--pods 32:50"));
  const Ran ran = run(kPredict + "--pods 16:50 --json");
  REQUIRE(ran.code == 0);
  CHECK(ran.out.find("links between pods take longer than the cards do, by a factor: pp 50") !=
        std::string::npos);
  CHECK(run(kPredict + "--json").out.find("pods") == std::string::npos);
}

TEST_CASE("a plan file keeps its pods") {
  const TemporaryFolder folder;
  const std::string file = folder.file("plan.json");
  const Ran first = run(kPredict + "--pods 8:2:rails,32:7 --json -o " + file);
  REQUIRE(first.code == 0);
  const Ran again = run("predict --json --plan " + file);
  CHECK(again.out == first.out);
  const Json pods = again.json()["overrides"]["pods"];
  REQUIRE(pods.size() == 2);
  CHECK(pods[0]["rails"] == true);
  CHECK(pods[1]["gpus"] == 32);
  CHECK(pods[1]["oversubscription"] == 7);
  CHECK(run("predict --pods 64:2 --json --plan " + file).json()["overrides"]["pods"].size() == 1);
}

TEST_CASE("pods that are none are refused in a sentence") {
  const auto complaint = [](const std::string& text) {
    const Ran ran = run(kPredict + "--pods " + text);
    CHECK(ran.code == 2);
    return ran.err;
  };
  for (const char* text : {"3072", "16:0.5", "16:7:tracks", "0:7", "16:nan", "16:7,", "16.5:7"}) {
    CAPTURE(text);
    CHECK(complaint(text).find("is not GPUS:RATIO") != std::string::npos);
  }
  CHECK(complaint("12:7").find("--pods has pods of 12 GPUs, which do not hold whole nodes of 8") !=
        std::string::npos);
  CHECK(complaint("16:2,24:7").find("pods of 16 GPUs in pods of 24") != std::string::npos);
  CHECK(complaint("8:1,16:2,32:3,64:4").find("more than 3 levels") != std::string::npos);
}
