#include "planner/runs/step_watch.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <vector>

using namespace qplan;

namespace {

// The kinds of alerts of a run whose step i takes seconds(i); each as often as it was said.
std::vector<StepAlert> alerts_of(int steps, const std::function<double(int)>& seconds) {
  StepWatch watch({Seconds(0.5), Seconds(2.0), Bytes(0)});
  std::vector<StepAlert> kinds;
  for (int i = 0; i < steps; ++i) {
    for (const Alert& alert : watch.add_step(i, seconds(i))) kinds.push_back(alert.kind);
  }
  return kinds;
}

using Kinds = std::vector<StepAlert>;

}  // namespace

TEST_CASE("steps that jitter by a few percent raise no alert") {
  CHECK(alerts_of(200, [](int i) { return 1 + 0.02 * (i * 7 % 5 - 2); }).empty());
}

TEST_CASE("a first step that compiles is no alert") {
  CHECK(alerts_of(60, [](int i) { return i < 2 ? 50.0 : 1.0; }).empty());
}

TEST_CASE("a sudden step is a jump, said once") {
  CHECK(alerts_of(100, [](int i) { return i < 50 ? 1.0 : 1.2; }) == Kinds{StepAlert::jump});
}

TEST_CASE("a slow climb is a drift and no jump") {
  CHECK(alerts_of(200, [](int i) { return 1 + 0.0005 * i; }) == Kinds{StepAlert::drift});
}

TEST_CASE("single long steps are spikes and neither jump nor drift") {
  CHECK(alerts_of(100, [](int i) { return i % 6 == 5 ? 1.8 : 1.0; }) == Kinds{StepAlert::spikes});
}

TEST_CASE("steps above the interval are slow, and again after they were not") {
  CHECK(alerts_of(40, [](int) { return 2.5; }) == Kinds{StepAlert::slow});
  const Kinds twice = alerts_of(120, [](int i) { return i >= 40 && i < 80 ? 1.0 : 2.5; });
  CHECK(std::count(twice.begin(), twice.end(), StepAlert::slow) == 2);
}

TEST_CASE("memory above the interval is told") {
  StepWatch watch({Seconds(1), Seconds(2), Bytes(100)});
  CHECK(watch.add_memory(1, Bytes(100)).empty());
  REQUIRE(watch.add_memory(2, Bytes(101)).size() == 1);
  CHECK(watch.add_memory(3, Bytes(102)).empty());
}
