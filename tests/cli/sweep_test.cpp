#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>

#include "tests/cli/run.h"

using namespace qplan;

namespace {

const std::string kSmallSweep =
    "--tp 1,2 --pp 1 --micro-batch-size 1,2 --recompute none --offload none ";
const std::string kSweep = "sweep --model tiny --seq-len 512 --global-batch-size 64 " + kSmallSweep;

std::string written(const TemporaryFolder& folder, const std::string& name,
                    const std::string& text) {
  std::ofstream(folder.file(name)) << text;
  return folder.file(name);
}

}  // namespace

TEST_CASE("a sweep has one point per world size, doubling over a range") {
  const Json points = run(kSweep + "--gpus 2..8 --json").json()["points"];
  REQUIRE(points.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(points[i]["gpus"] == (2 << i));
  CHECK(points[0]["scaling"] == 1);
}

TEST_CASE("a point of a sweep is the best plan of its search") {
  const Json point = run(kSweep + "--gpus 8 --json").json()["points"][0];
  const Json best =
      run("search --model tiny --seq-len 512 --global-batch-size 64 --gpus 8 --top 1 --json " +
          kSmallSweep)
          .json()["plans"][0];
  CHECK(point["short"] == best["short"]);
  CHECK(point["step_time_s"] == best["step_time_s"]);
}

TEST_CASE("a run's days, cost and energy follow from its tokens") {
  const std::string line = kSweep + "--gpus 8 --json --failures 0 --price 2 ";
  const Json one = run(line + "--tokens 1B").json()["points"][0];
  const Json ten = run(line + "--tokens 10B").json()["points"][0];
  for (const char* key : {"days", "cost_usd", "energy_kwh", "gpu_hours"}) {
    CAPTURE(key);
    CHECK(ten["run"][key].get<double>() ==
          doctest::Approx(10 * one["run"][key].get<double>()).epsilon(1e-9));
  }
  CHECK(one["run"]["cost_usd"].get<double>() ==
        doctest::Approx(2 * one["run"]["gpu_hours"].get<double>()));
  CHECK(one["run"]["goodput"] == 1);
  const double seconds = 1e9 / one["tokens_per_s"].get<double>();
  // One node is late by the mean, 1.47% of a step.
  CHECK(one["run"]["days"].get<double>() == doctest::Approx(1.0147 * seconds / 86400));
}

TEST_CASE("without a price a run has no cost") {
  const Json run_facts = run(kSweep + "--gpus 8 --json").json()["points"][0]["run"];
  CHECK(run_facts["cost_usd"].is_null());
  CHECK_FALSE(run(kSweep + "--gpus 8").says("USD"));
}

TEST_CASE("lengths, batches and machines are swept together") {
  const Json points = run("sweep --model tiny --gpus 8 --seq-len 256,512 --global-batch-size 16,32 "
                          "--hardware h100-sxm,h200-sxm --json " +
                          kSmallSweep)
                          .json()["points"];
  REQUIRE(points.size() == 8);
  CHECK(points[0]["hardware"] == "h100-sxm");
  CHECK(points[7]["hardware"] == "h200-sxm");
  CHECK(points[7]["seq_len"] == 512);
  CHECK(points[7]["global_batch_size"] == 32);
}

TEST_CASE("a point where nothing fits does not spoil the others") {
  const std::string line =
      "sweep --model llama3-8b --gpus 1,8 --global-batch-size 8 --micro-batch-size 1 --offload "
      "none "
      "--recompute full --cp 1 ";
  const Ran text = run(line);
  CHECK(text.code == 0);
  CHECK(text.says("does not fit"));
  const Json points = run(line + "--json").json()["points"];
  CHECK(points[0]["feasible"] == false);
  CHECK(points[1]["feasible"] == true);
  CHECK(run("sweep --model llama3-405b --gpus 1 --global-batch-size 8").code == 1);
}

TEST_CASE("a point where nothing fits has the keys of the others") {
  const Json points = run("sweep --model llama3-8b --gpus 1,8 --global-batch-size 8 "
                          "--micro-batch-size 1 --offload none --recompute full --cp 1 --json")
                          .json()["points"];
  REQUIRE(points.size() == 2);
  REQUIRE(points[0]["feasible"] == false);
  REQUIRE(points[1]["feasible"] == true);
  for (const auto& [key, value] : points[1].items()) {
    CAPTURE(key);
    CHECK(points[0].contains(key));
  }
  CHECK(points[0]["step_time_s"].is_null());
  CHECK(points[0]["scaling"].is_null());
}

TEST_CASE("the points of a sweep have one batch, chosen for all of them") {
  const std::string few = "--micro-batch-size 1 --recompute none --offload none --tp 1 --cp 1 ";
  const std::string line = "sweep --model qwen3-0.6b --gpus 24,48,96,192 " + few;
  const Json points = run(line + "--json").json()["points"];
  REQUIRE(points.size() == 4);
  for (const Json& point : points) {
    CHECK(point["global_batch_size"] == points[0]["global_batch_size"]);
    CHECK(point["global_batch_size"].get<int>() % 192 == 0);
    CHECK(point["defaults"] == points[0]["defaults"]);
  }
  const std::string text = run(line).out;
  CHECK(points[0]["defaults"]["global_batch_size"].get<std::string>().find(
            "layouts of 24, 48, 96 and 192 GPUs") != std::string::npos);
  const std::string sentence = "default batch: ";
  CHECK(text.find(sentence) != std::string::npos);
  CHECK(text.find(sentence) == text.rfind(sentence));
}

TEST_CASE("a rank that rests on assumed efficiencies is marked where it stands beside others") {
  const std::string line =
      "sweep --model llama3-8b --gpus 8 --seq-len 4096 --global-batch-size 16 --tp 2 --pp 1 "
      "--cp 1 --micro-batch-size 1 --recompute none --offload none --hardware ";
  const std::string text = run(line + "h100-sxm,h20").out;
  std::istringstream lines(text);
  int marked = 0, unmarked = 0;
  for (std::string row; std::getline(lines, row);) {
    if (row.starts_with("h20 ")) marked += row.find('*') != std::string::npos ? 1 : 0;
    if (row.starts_with("h100-sxm ")) unmarked += row.find('*') == std::string::npos ? 1 : 0;
  }
  CHECK(marked == 1);
  CHECK(unmarked == 1);
  CHECK(text.find("* more than a fifth of the step is priced from assumed") != std::string::npos);
  CHECK(run(line + "h100-sxm,h200-sxm").out.find('*') == std::string::npos);
}

TEST_CASE("a sweep can be written to a file") {
  const TemporaryFolder folder;
  const std::string file = folder.file("sweep.json");
  const Ran ran = run(kSweep + "--gpus 4 --json -o " + file);
  CHECK(ran.code == 0);
  CHECK(ran.out.empty());
  CHECK(read_json_file(file) == run(kSweep + "--gpus 4 --json").json());
}

TEST_CASE("a sweep notes each length beyond the model's positions once") {
  const std::string line =
      "sweep --model tiny --gpus 4,8 --seq-len 512,1024 --global-batch-size 16 " + kSmallSweep;
  const std::string note = "note: sequences of 1024 are longer than the 512 positions";
  const std::string text = run(line).out;
  CHECK(text.find(note) != std::string::npos);
  CHECK(text.find("note: ") == text.rfind("note: "));
  const Json points = run(line + "--json").json()["points"];
  REQUIRE(points.size() == 4);
  for (const Json& point : points) {
    const bool noted = point["notes"].dump().find("sequences of 1024") != std::string::npos;
    CHECK(noted == (point["seq_len"] == 1024));
  }
}

TEST_CASE("a run that fails faster than it makes progress never ends, and sweep says so") {
  const std::string line = "sweep --model tiny --gpus 8,16 --tokens 1B --failures 100000";
  const Ran ran = run(line);
  CHECK(ran.code == 0);
  CHECK(ran.says("never ends"));
  CHECK(run(line + " --json").json()["points"][1]["run"]["days"].is_null());
  CHECK_FALSE(run("sweep --model tiny --gpus 8,16 --tokens 1B").says("never ends"));
}

TEST_CASE("scaling is of world sizes alone: of one batch, length and profile") {
  const TemporaryFolder folder;
  const auto profile = [&](const std::string& name, int tflops) {
    return written(
        folder, name,
        fmt::format(
            R"({{"extends": "h100-sxm", "name": "ours", "gpu": {{"matmul_bf16_tflops": {}}}}})",
            tflops));
  };
  const Json points =
      run("sweep --model tiny --gpus 2,8 --seq-len 256,512 "
          "--global-batch-size 16,64 --hardware " +
          profile("slow.json", 500) + "," + profile("fast.json", 900) + " --json " + kSmallSweep)
          .json()["points"];
  REQUIRE(points.size() == 16);
  for (std::size_t i = 0; i < points.size(); i += 2) {
    CAPTURE(points[i]["short"]);
    CHECK(points[i]["scaling"] == 1);
    CHECK(points[i + 1]["scaling"].get<double>() ==
          doctest::Approx(points[i + 1]["tokens_per_s_per_gpu"].get<double>() /
                          points[i]["tokens_per_s_per_gpu"].get<double>()));
  }
}

TEST_CASE("a machine without a price has no cost beside one that has") {
  const TemporaryFolder folder;
  const std::string priced =
      written(folder, "ours.json", R"({"extends": "h100-sxm", "price_per_gpu_hour_usd": 2})");
  for (const std::string& machines : {priced + ",h200-sxm", "h200-sxm," + priced}) {
    CAPTURE(machines);
    const std::string line = kSweep + "--gpus 8 --tokens 1T --hardware " + machines;
    const std::string text = run(line).out;
    std::istringstream lines(text);
    std::string of_h200;
    for (std::string row; std::getline(lines, row);) {
      if (row.starts_with("h200-sxm ")) of_h200 = row;
    }
    CHECK(text.find("cost") != std::string::npos);
    REQUIRE(!of_h200.empty());
    CHECK(of_h200.ends_with(" -"));
    int costs = 0;
    const Json answer = run(line + " --json").json();
    for (const Json& point : answer["points"]) {
      costs += point["run"]["cost_usd"].is_null() ? 0 : 1;
    }
    CHECK(costs == 1);
  }
}

TEST_CASE("a cluster of two kinds says its GPUs itself") {
  const std::string asked =
      "sweep --model llama3-8b --hardware h100-sxm:8+a100-80gb-sxm:8 --tp 1 --pp 2 --json";
  const Ran ran = run(asked);
  REQUIRE(ran.code == 0);
  CHECK(ran.json() == run(asked + " --gpus 16").json());
}
