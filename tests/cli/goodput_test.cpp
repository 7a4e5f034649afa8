#include <doctest/doctest.h>

#include <sstream>
#include <string>
#include <vector>

#include "models/json.h"
#include "tests/cli/run.h"

using namespace qplan;

namespace {

const std::string kJob = "--model llama3-8b --gpus 64 --runs 20";

Ran ask(const std::string& plan, const std::string& options) {
  std::vector<std::string> args = {"goodput", plan};
  std::istringstream in(kJob + " " + options);
  for (std::string word; in >> word;) args.push_back(word);
  return run(args);
}

Json goodput(const std::string& options) {
  return ask("tp2", "--json " + options).json();
}

}  // namespace

TEST_CASE("without failures a run takes its steps, late nodes included") {
  const Json answer = goodput("--failures 0 --tokens 10B");
  CHECK(answer["goodput"]["mean"] == 1);
  CHECK(answer["failures"] == 0);
  CHECK(answer["checkpoint"]["interval_s"].is_null());
  const double slower = 1 + answer["straggler_slowdown"].get<double>();
  const double step = answer["step_time_s"];
  CHECK(answer["step_in_run_s"].get<double>() == doctest::Approx(step * slower));
  CHECK(answer["step_time_s"] == answer["prediction"]["step_time_s"]);
  CHECK(answer["shares"]["steps"].get<double>() == doctest::Approx(1 / slower));
}

TEST_CASE("shares of the time sum to 1, and a run is played the same again") {
  const Json answer = goodput("--failures 50 --tokens 100B");
  double sum = 0;
  for (const auto& [cause, share] : answer["shares"].items()) sum += share.get<double>();
  CHECK(sum == doctest::Approx(1));
  CHECK(answer["goodput"]["p10"] <= answer["goodput"]["mean"]);
  CHECK(answer["goodput"]["p90"] >= answer["goodput"]["mean"]);
  CHECK(answer == goodput("--failures 50 --tokens 100B"));
}

TEST_CASE("a step that was measured takes the place of the predicted one") {
  const Json answer = goodput("--step-time-s 7 --straggler-delay 0");
  CHECK(answer["step_time_s"] == 7);
  CHECK(answer["step_in_run_s"] == 7);
}

TEST_CASE("slower storage and rarer saves cost goodput") {
  const auto mean = [](const std::string& options) {
    return goodput("--failures 200 --tokens 100B --spares 8 " + options)["goodput"]["mean"]
        .get<double>();
  };
  const double base = mean("");
  CHECK(mean("--storage-total-gb-per-s 0.5") < base);
  CHECK(mean("--checkpoint-interval-s 20000") < base);
  CHECK(mean("--asynchronous --storage-total-gb-per-s 0.5") > mean("--storage-total-gb-per-s 0.5"));
  CHECK(mean("--memory-copies-every 1") > base);
  CHECK(mean("--start-ms-per-gpu 100") < base);
}

TEST_CASE("two sites train twice the tokens a step, and wait for their link") {
  const Json one = goodput("--failures 0"),
             two = goodput("--failures 0 --sites 2 --site-gbit-per-s 1");
  CHECK(one["exchange"].is_null());
  CHECK(two["exchange"]["exposed_s_per_step"].get<double>() > 0);
  CHECK(two["nodes"] == 2 * one["nodes"].get<int>());
  CHECK(two["tokens_per_s"].get<double>() < 2 * one["tokens_per_s"].get<double>());
  const Json thin = goodput("--failures 0 --sites 2 --site-gbit-per-s 1 --outer-bits 4");
  CHECK(thin["tokens_per_s"].get<double>() > two["tokens_per_s"].get<double>());
}

TEST_CASE("replicas go on without one only where each has all of the states") {
  const std::string many = "--failures 500 --tokens 100B --spares 8 --detection-s 5";
  const Json alone = ask("tp4 zero0 overlap=grad", "--json --recovery replica " + many).json();
  const Json job = ask("tp4 zero0 overlap=grad", "--json " + many).json();
  CHECK(alone["goodput"]["mean"].get<double>() > job["goodput"]["mean"].get<double>());
  CHECK(alone["shares"]["degraded"].get<double>() > 0);
  const Ran shared = ask("tp2 zero1", "--recovery replica");
  CHECK(shared.code == 2);
  CHECK(shared.says("fsdp_shard"));
}

TEST_CASE("without a plan the best one is played; what cannot run is refused") {
  const Ran found = run("goodput " + kJob);
  CHECK(found.code == 0);
  CHECK(found.says("best plan"));
  CHECK(found.says("where the time goes"));
  CHECK(run("goodput tp3 " + kJob).code == 1);
  CHECK(run("goodput --model llama3-405b --gpus 8").code == 1);
}

TEST_CASE("a job that fails faster than it makes progress never ends, and that is one sentence") {
  for (const std::string rate : {"30000", "100000"}) {
    CAPTURE(rate);
    const Ran ran = ask("tp2", "--scheduling-s 30000 --failures " + rate);
    CHECK(ran.code == 1);
    CHECK(ran.out.empty());
    CHECK(ran.says("never ends"));
  }
}

TEST_CASE("where nothing fails no interval is said to be never") {
  const Ran ran = ask("tp2", "--failures 0 --tokens 10B");
  REQUIRE(ran.code == 0);
  CHECK(ran.says("never saved (nothing fails, so that no interval pays)"));
  CHECK_FALSE(ran.says("every never"));
}
