#include <doctest/doctest.h>

#include "models/error.h"
#include "tests/cli/run.h"

using namespace qplan;

namespace {

const Json& named(const Json& targets, const std::string& name) {
  for (const Json& target : targets["targets"]) {
    if (target["name"] == name) return target;
  }
  throw Error("no target " + name);
}

}  // namespace

TEST_CASE("targets are the prediction's, with the ends of its interval") {
  const std::string job = "--model llama3-8b --gpus 16 --json";
  const Json targets = run("targets tp2 " + job).json();
  const Json predicted = run("predict tp2 " + job).json();
  const Json& interval = predicted["interval"]["step_time_s"];
  const Json& step = named(targets, "step_time");
  CHECK(step["expected"] == predicted["step_time_s"]);
  CHECK(step["low"] == interval[0]);
  CHECK(step["high"] == interval[1]);
  // Slow steps are low rates.
  const double tokens = predicted["tokens_per_s_per_gpu"], expected = predicted["step_time_s"];
  CHECK(named(targets, "tokens_per_second_per_gpu")["low"].get<double>() ==
        doctest::Approx(tokens * expected / interval[1].get<double>()));
}

TEST_CASE("every stage of a pipeline has its memory") {
  const Json targets =
      run({"targets", "tp1 pp2", "--model", "llama3-8b", "--gpus", "16", "--json"}).json();
  const Json& stages = targets["prediction"]["memory"]["stages"];
  std::size_t count = 0;
  for (const Json& target : targets["targets"]) {
    if (target["name"] != "memory_allocated") continue;
    CHECK(target["stage"] == count);
    CHECK(target["expected"].get<double>() ==
          doctest::Approx(stages[count]["peak_gib"].get<double>() * 1073741824.0));
    CHECK(target["high"].get<double>() > target["expected"].get<double>());
    ++count;
  }
  CHECK(count == 2);
}

TEST_CASE("Prometheus rules name the metrics, the thresholds and how long") {
  const Ran ran =
      run("targets tp2 --model llama3-8b --gpus 16 --format prometheus --metric-prefix ours "
          "--for-min 7");
  REQUIRE(ran.code == 0);
  CHECK(ran.out.find("\ngroups:\n  - name: qplan\n    rules:\n") != std::string::npos);
  CHECK(ran.says("- alert: QplanStepTimeHigh\n        expr: ours_step_time_seconds > "));
  CHECK(ran.says("expr: ours_memory_allocated_bytes{stage=\"0\"} > "));
  CHECK(ran.says("for: 7m"));
}

TEST_CASE("a plan that does not fit has no targets") {
  CHECK(run("targets tp1 --model llama3-70b --gpus 8").code == 1);
}

TEST_CASE("a metric's name is one that Prometheus reads") {
  for (const char* name : {"9bad", "bad-x", "bad x", "b{d}"}) {
    CAPTURE(name);
    const Ran ran = run({"targets", "tp2", "--model", "llama3-8b", "--gpus", "16", "--format",
                         "prometheus", "--metric-prefix", name});
    CHECK(ran.code == 2);
    CHECK(ran.out.empty());
  }
  CHECK(run("targets tp2 --model llama3-8b --gpus 16 --format prometheus --metric-prefix _a:B9")
            .says("expr: _a:B9_step_time_seconds"));
}
