// Plan files: the same question again, what options change of it, and what is wrong with one.

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "models/model_spec.h"
#include "tests/cli/run.h"

using namespace qplan;

namespace {

const std::string kPredict = "predict --model tiny --gpus 8 --seq-len 512 --global-batch-size 16 ";

}  // namespace

TEST_CASE("a plan file for other GPUs is another question, not an older program's answer") {
  const TemporaryFolder folder;
  const std::string file = folder.file("plan.json");
  REQUIRE(run(kPredict + "--tp 2 -o " + file).code == 0);
  for (const std::string changed :
       {"--gpus 4", "--gpus 16", "--tp 1", "--hardware h200-sxm", "--gpus-per-node 4"}) {
    CAPTURE(changed);
    CHECK_FALSE(run("predict --plan " + file + " " + changed).says("step program has changed"));
  }
  CHECK_FALSE(run("predict --plan " + file).says("step program has changed"));
  Json old = read_json_file(file);
  old["fingerprint"] = "0000000000000000";
  write_file_atomically(file, old.dump());
  CHECK(run("predict --plan " + file).says("step program has changed"));
  CHECK(run("predict --gpus 8 --plan " + file).says("step program has changed"));
  CHECK_FALSE(run("predict --gpus 16 --plan " + file).says("step program has changed"));
}

TEST_CASE("a plan file asks the same question again") {
  const TemporaryFolder folder;
  const std::string file = folder.file("plan.json");
  const Ran first =
      run(kPredict + "--tp 2 --nic-gb-per-s 25 --memory-cap-gib 60 --json -o " + file);
  REQUIRE(first.code == 0);
  const Ran again = run("predict --json --plan " + file);
  CHECK(again.code == 0);
  CHECK(again.out == first.out);
  CHECK(again.json()["overrides"]["nic_gb_per_s"] == 25);
  CHECK_FALSE(parse_json(first.out, "").contains("model_config"));  // built in
}

TEST_CASE("options change what a plan file says") {
  const TemporaryFolder folder;
  const std::string file = folder.file("plan.json");
  REQUIRE(run(kPredict + "--tp 2 -o " + file).code == 0);
  const Json changed = run("predict --json --tp 4 --hardware h200-sxm --plan " + file).json();
  CHECK(changed["hardware"] == "h200-sxm");
  CHECK(changed["plan"]["tp"] == 4);
  CHECK(changed["plan"]["dp"] == 2);
  CHECK(changed["plan"]["global_batch_size"] == 16);
}

TEST_CASE("a plan file carries the model and the machine that are not built in") {
  const TemporaryFolder folder;
  const std::string config = folder.file("mine.json"), machine = folder.file("machine.json"),
                    plan = folder.file("plan.json");
  write_file_atomically(config, model_config("tiny").dump());
  Json profile = run("hardware show h100-sxm").json();
  profile["name"] = "our-machine";
  write_file_atomically(machine, profile.dump());
  const Ran first = run("predict --gpus 4 --seq-len 512 --json --model " + config + " --hardware " +
                        machine + " -o " + plan);
  REQUIRE(first.code == 0);
  std::filesystem::remove(config);
  std::filesystem::remove(machine);
  const Ran again = run("predict --json --plan " + plan);
  CHECK(again.out == first.out);
  CHECK(again.json()["hardware"] == "our-machine");
}

TEST_CASE("a machine that extends others is whole in the plan file") {
  const TemporaryFolder folder;
  const std::string base = folder.file("base.json"), machine = folder.file("machine.json"),
                    plan = folder.file("plan.json");
  write_file_atomically(base, R"({"extends": "h100-sxm", "gpu": {"memory_gb_per_s": 3000}})");
  write_file_atomically(machine, R"({"extends": "base.json", "host": {"memory_gb": 500}})");
  const Ran first = run("predict --model tiny --gpus 4 --seq-len 512 --json --hardware " + machine +
                        " -o " + plan);
  REQUIRE(first.code == 0);
  CHECK(first.json()["hardware"] == "machine");
  std::filesystem::remove(base);
  std::filesystem::remove(machine);
  const Json embedded = read_json_file(plan)["hardware_profile"];
  CHECK_FALSE(embedded.contains("extends"));
  CHECK(embedded["gpu"]["memory_gb_per_s"] == 3000);
  CHECK(embedded["host"]["memory_gb"] == 500);
  CHECK(embedded["gpu"]["memory_gb"] == 80);
  CHECK(embedded["gemm"]["bf16"]["assumed"] == true);  // of another bandwidth than the H100's
  CHECK(run("predict --json --plan " + plan).out == first.out);
}

TEST_CASE("a file that is no plan file is refused with its place") {
  const TemporaryFolder folder;
  const std::string file = folder.file("plan.json");
  write_file_atomically(file, "{}");
  CHECK(run("predict --plan " + file).says("is no plan file"));
  write_file_atomically(
      file, R"({"model": "tiny", "hardware": "h100-sxm", "gpus": 8, "plan": {"tq": 4}})");
  const Ran ran = run("predict --plan " + file);
  CHECK(ran.code == 2);
  CHECK(ran.says("plan.tq"));
  write_file_atomically(file, R"({"model": "tiny", "gpus": 8, "plan": {}})");
  CHECK(run("predict --plan " + file).says("hardware"));
}

TEST_CASE("what is wrong with a value of a plan file names the file") {
  const TemporaryFolder folder;
  const std::string file = folder.file("plan.json");
  for (const auto& [key, text] : std::vector<std::pair<std::string, std::string>>{
           {"hardware", R"({"model": "tiny", "hardware": "nope", "gpus": 8, "plan": {}})"},
           {"model", R"({"model": "nope", "hardware": "h100-sxm", "gpus": 8, "plan": {}})"},
           {"framework",
            R"({"model": "tiny", "hardware": "h100-sxm", "framework": "nope", "gpus": 8,
                "plan": {}})"}}) {
    CAPTURE(key);
    write_file_atomically(file, text);
    for (const std::string verb :
         {"predict --plan ", "trace --text ", "run ", "emit --framework megatron --json "}) {
      CAPTURE(verb);
      const Ran ran = run(verb + file);
      CHECK(ran.code == 2);
      CHECK(ran.says(file + ": " + key + ": "));
    }
  }
  // What an option says instead is no fault of the file's.
  write_file_atomically(file,
                        R"({"model": "tiny", "hardware": "nope", "gpus": 8, "plan": {"dp": 8}})");
  CHECK(run("predict --json --hardware h100-sxm --plan " + file).json()["hardware"] == "h100-sxm");
}
