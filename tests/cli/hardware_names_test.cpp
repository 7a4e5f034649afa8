// Names of machines, and clusters of several kinds, as a person asks for them.

#include <doctest/doctest.h>

#include "tests/cli/run.h"

using namespace qplan;

TEST_CASE("a family's name is its plain member's, in lists and answers") {
  const Ran list = run("hardware");
  REQUIRE(list.code == 0);
  CHECK(list.says("h100-80gb, nd-h100-v5 for h100-sxm"));
  const Json json = run("hardware --json").json();
  bool seen = false;
  for (const Json& machine : json.at("hardware")) {
    if (machine.at("name") != "mi355x") continue;
    seen = true;
    CHECK(machine.at("other_names").empty());
    CHECK(machine.at("gpu") == "MI355X 288GB");
  }
  CHECK(seen);
  CHECK(run("hardware show h100").out == run("hardware show h100-sxm").out);
  CHECK(run("predict --model tiny --gpus 8 --hardware h100 --json").json().at("hardware") ==
        "h100-sxm");
}

TEST_CASE("names that cannot be planned for are bad input, with a sentence") {
  const Ran tpu = run("predict --model tiny --gpus 8 --hardware tpu-v5p");
  CHECK(tpu.code == 2);
  CHECK(tpu.says("hardware 'tpu-v5p' is refused: a TPU runs programs that XLA compiles"));
  const Ran hopper = run("search --model tiny --gpus 8 --hardware hopper");
  CHECK(hopper.code == 2);
  CHECK(hopper.says("choose one of h100-sxm, h100-pcie, h200-sxm, h800, h20"));
  const Ran counted = run("search --model tiny --hardware h100-sxm:64");
  CHECK(counted.code == 2);
  CHECK(
      counted.says("--hardware h100-sxm:64 is one kind of GPU; use --hardware h100-sxm --gpus 64"));
}

TEST_CASE("what was never held against a run says so, and is less sure") {
  const std::string ask =
      "predict --model qwen3-8b --gpus 8 --tp 4 --zero 1 --framework megatron --json --hardware ";
  const Ran known = run(ask + "h100-sxm"), unknown = run(ask + "mi300x");
  REQUIRE(known.code == 0);
  REQUIRE(unknown.code == 0);
  const std::string note = "no run of megatron on MI300X 192GB was held against predictions";
  CHECK(unknown.says(note));
  CHECK_FALSE(known.says("was held against predictions"));
  const auto width = [](const Json& answer) {
    const Json& interval = answer.at("interval").at("step_time_s");
    return (interval[1].get<double>() - interval[0].get<double>()) /
           answer.at("step_time_s").get<double>();
  };
  CHECK(width(unknown.json()) > 1.4 * width(known.json()));
}

TEST_CASE("a cluster of two kinds is searched, written and predicted again") {
  const std::string kinds = "h100-sxm:8+a100-80gb-sxm:8";
  const TemporaryFolder folder;
  const std::string file = folder.file("plan.json");
  const Ran found =
      run("search --model qwen3-0.6b --seq-len 2048 --global-batch-size 64 --json -o " + file +
          " --hardware " + kinds);
  REQUIRE(found.code == 0);
  const Json best = found.json().at("plans").at(0);
  CHECK(best.at("plan").at("pp").get<int>() % 2 == 0);  // whole stages on each kind
  const Ran again = run("predict " + file + " --json");
  REQUIRE(again.code == 0);
  CHECK(again.json().at("hardware") == kinds);
  CHECK(again.json().at("gpus") == 16);
  CHECK(again.json().at("step_time_s") == best.at("step_time_s"));

  const std::string ask = "predict --model qwen3-0.6b --hardware " + kinds;
  const Ran flat = run(ask + " --dp 16 --global-batch-size 64");
  CHECK(flat.code == 1);
  CHECK(flat.says("a pipeline stage of 16 GPUs does not divide the 8 of h100-sxm"));
  CHECK(run(ask + " --gpus 8").says("--gpus 8 is not the 16 GPUs"));
  CHECK(run("predict --model tiny --hardware h100-sxm+a100").says("does not say how many GPUs"));
  CHECK(run("trace " + file + " --text").says("priced, not drawn"));
}
