#include "planner/runs/step_watch.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace qplan;

namespace {

// What was said of a run whose step i takes seconds(i): "jump 64, jump over 94".
std::string said_of(int steps, const std::function<double(int)>& seconds) {
  StepWatch watch({Seconds(0.5), Seconds(2.0), Bytes(0)});
  std::string said;
  for (int i = 1; i <= steps; ++i) {
    for (const Alert& alert : watch.add_step(i, seconds(i))) {
      said += (said.empty() ? "" : ", ") + std::string(to_word(alert.kind)) +
              (alert.over_since ? " over " : " ") + std::to_string(i);
    }
  }
  return said;
}

// The same, the kinds alone: what began.
std::vector<StepAlert> alerts_of(int steps, const std::function<double(int)>& seconds) {
  StepWatch watch({Seconds(0.5), Seconds(2.0), Bytes(0)});
  std::vector<StepAlert> kinds;
  for (int i = 0; i < steps; ++i) {
    for (const Alert& alert : watch.add_step(i, seconds(i))) {
      if (!alert.over_since) kinds.push_back(alert.kind);
    }
  }
  return kinds;
}

using Kinds = std::vector<StepAlert>;

// Steps of one second that jitter by 3%, the same in every run.
struct Noisy {
  std::mt19937 engine{5};
  std::function<double(int)> factor;
  double operator()(int i) {
    double sum = 0;  // of twelve: nearly a normal distribution
    for (int k = 0; k < 12; ++k) sum += static_cast<double>(engine()) * 0x1p-32;
    return factor(i) * (1 + 0.03 * (sum - 6));
  }
};
std::string noisy(int steps, std::function<double(int)> factor) {
  return said_of(steps, Noisy{.factor = std::move(factor)});
}

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
  // Peaks never fall: a lower one is another rank's.
  CHECK(watch.add_memory(4, Bytes(90)).empty());
  CHECK(watch.add_memory(5, Bytes(102)).empty());
}

TEST_CASE("a jump of whatever height is no spikes, and is said once and once when it is over") {
  CHECK(noisy(400, [](int) { return 1.0; }).empty());
  for (const double height : {1.25, 1.3, 1.5, 1.9}) {
    CAPTURE(height);
    CHECK(noisy(200, [&](int i) { return i < 60 ? 1 : height; }) == "jump 64");
    CHECK(noisy(200, [&](int i) { return i >= 60 && i < 90 ? height : 1; }) ==
          "jump 64, jump over 94");
  }
  CHECK(said_of(200, [](int i) { return i >= 60 && i < 90 ? 3.0 : 1.0; }) ==
        "slow 64, jump 64, slow over 94, jump over 94");
}

TEST_CASE("of two jumps both are said, and both are over") {
  const auto stairs = [](int i) {
    return i < 60 || i >= 200 ? 1 : i < 100 || i >= 150 ? 1.25 : 1.6;
  };
  CHECK(said_of(140, stairs) == "jump 64, jump 104");
  CHECK(said_of(300, stairs) == "jump 64, jump 104, jump over 154, jump over 204");
  CHECK(said_of(200, [](int i) { return i / 40 % 2 == 1 ? 1.4 : 1.0; }) ==
        "jump 44, jump over 84, jump 124, jump over 164");
}

TEST_CASE("every k-th step long is spikes, once, where that are three of twenty") {
  for (int k = 2; k <= 20; ++k) {
    CAPTURE(k);
    const std::string said = noisy(400, [k](int i) { return i % k == 0 ? 1.8 : 1.0; });
    CHECK(said.starts_with("spikes") == (k < 10));
    CHECK(said.find(',') == std::string::npos);
  }
  const auto a_while = [](int i) { return i > 100 && i <= 200 && i % 5 == 0 ? 1.8 : 1.0; };
  CHECK(said_of(300, a_while) == "spikes 116, spikes over 220");
  // Both, each once.
  CHECK(said_of(400, [](int i) { return (i % 7 == 0 ? 1.8 : 1.0) * (i < 200 ? 1 : 1.4); }) ==
        "spikes 29, jump 204");
  // Checkpoints.
  CHECK(noisy(400, [](int i) { return i % 50 == 0 ? 4.0 : 1.0; }).empty());
}

TEST_CASE("a climb is said once, as a drift or, where it is steep, as a jump") {
  for (const double a_step : {0.001, 0.003, 0.005, 0.01, 0.03, 0.05}) {
    CAPTURE(a_step);
    const auto climb = [&](int i) { return 1 + a_step * std::clamp(i - 60, 0, 90); };
    const std::string said = said_of(300, climb);
    const bool drift = said.starts_with("drift"), jump = said.starts_with("jump");
    CHECK((a_step < 0.02 ? drift : jump));
    CHECK(said.find(drift ? "drift" : "jump", 1) == std::string::npos);
  }
}

TEST_CASE("a run on the threshold says so once") {
  CHECK(noisy(2000, [](int) { return 2.0; }).find(',') == std::string::npos);
}

TEST_CASE("a mean of the whole run is judged without warm-up") {
  StepWatch watch({Seconds(1), Seconds(2), Bytes(0)});
  CHECK(watch.add_mean(1.5).empty());
  CHECK(watch.seconds().size() == 1);
  StepWatch slow({Seconds(1), Seconds(2), Bytes(0)});
  REQUIRE(slow.add_mean(2.5).size() == 1);
}

TEST_CASE("a run that starts again warms up again") {
  StepWatch watch({Seconds(0.5), Seconds(2.0), Bytes(0)});
  for (int i = 0; i < 12; ++i) watch.add_step(i, 1);
  watch.restart();
  for (int i = 6; i < 8; ++i) watch.add_step(i, 60);
  watch.add_step(8, 1);
  CHECK(watch.seconds() == std::vector<double>(11, 1.0));
}

TEST_CASE("no step for ten times as long as steps take is a hang, said once, until the next step") {
  StepWatch watch({Seconds(9), Seconds(11), Bytes(0)});
  for (int i = 1; i <= 12; ++i) CHECK(watch.add_step(i, 10).empty());
  CHECK(watch.wait(12, 99, 1).empty());
  const auto hang = watch.wait(12, 101, 1);
  REQUIRE(hang.size() == 1);
  CHECK(hang[0].kind == StepAlert::hang);
  CHECK(hang[0].step == 12);
  CHECK(hang[0].threshold == 100);
  CHECK(watch.wait(12, 200, 1).empty());
  const auto over = watch.add_step(13, 10);
  REQUIRE(over.size() == 1);
  CHECK(over[0].over_since == 12);
  // Lines that tell of every fifth step come a fifth as often.
  CHECK(watch.wait(13, 499, 5).empty());
  CHECK(watch.wait(13, 501, 5).size() == 1);
}

TEST_CASE("short steps have a minute, and who says when a run hangs is believed") {
  StepWatch watch({Seconds(0.1), Seconds(0.2), Bytes(0)});
  for (int i = 1; i <= 12; ++i) CHECK(watch.add_step(i, 0.15).empty());
  CHECK(watch.wait(12, 59, 1).empty());
  CHECK(watch.wait(12, 4, 1, 3).size() == 1);
}
