// The headline of README.md, made anew: how far off the predictions of published runs are. One
// small file states the figures; tests/house sees to it that the pages quote it.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>

#include "planner/runs/measured_runs.h"
#include "tests/cli/run.h"

namespace qplan {
namespace {

const std::string kPublished = QPLAN_TEST_DATA "/runs/";

// Half of the last digit that is stated, and a hundredth of it for compilers' last bits.
constexpr double kRounding = 0.0505;

// A sentence for every figure that is not as stated; better is as wrong as worse.
std::string drift(const Json& stated, const Json& measured, const std::string& part) {
  std::string text;
  const auto compare = [&](const char* figure, const char* word) {
    if (!stated[part].contains(word)) return;
    const double is = 100 * measured[part][figure].get<double>();
    const double was = stated[part][word].get<double>();
    if (std::abs(is - was) <= kRounding) return;
    text += fmt::format("{} {} is {:.2f}, stated as {}\n", part, word, is, was);
  };
  compare("median_abs", "median_percent");
  compare("p90_abs", "p90_percent");
  if (measured[part]["rows"] != stated[part]["rows"]) {
    text += fmt::format("{} is judged on {} rows, stated as {}\n", part,
                        measured[part]["rows"].dump(), stated[part]["rows"].dump());
  }
  return text;
}

TEST_CASE(
    "accuracy over the published runs is what the headline states, neither worse nor better") {
  const Json stated = read_json_file(kPublished + "headline.json");
  const Ran ran = run({"accuracy", kPublished + stated["runs"].get<std::string>(), "--json",
                       "--grade", stated["grades"].get<std::string>()});
  REQUIRE(ran.code == 0);
  const Json measured = ran.json()["all"];
  const std::string drifts =
      drift(stated, measured, "step_time") + drift(stated, measured, "memory");
  INFO(drifts << "tests/data/runs/headline.json no longer holds. If the change is meant, "
                 "scripts/accuracy writes it and the table of docs/accuracy.md anew; README.md "
                 "quotes the figures and must follow by hand.");
  CHECK(drifts.empty());
}

TEST_CASE("accuracy knows every word of the published runs") {
  for (const MeasuredRun& run : read_measured_runs(read_csv_file(kPublished + "published.csv"))) {
    CAPTURE(run.id);
    CHECK(run.unknown_flags.empty());
  }
}

TEST_CASE("accuracy that drifts from the headline is seen, either way") {
  const Json stated{{"step_time", {{"rows", 9}, {"median_percent", 5.2}, {"p90_percent", 18.0}}}};
  const auto measured = [](double median, double p90, int rows) {
    return Json{{"step_time", {{"rows", rows}, {"median_abs", median}, {"p90_abs", p90}}}};
  };
  CHECK(drift(stated, measured(0.0524, 0.1796, 9), "step_time").empty());
  CHECK_FALSE(drift(stated, measured(0.0526, 0.18, 9), "step_time").empty());
  CHECK_FALSE(drift(stated, measured(0.0514, 0.18, 9), "step_time").empty());
  CHECK_FALSE(drift(stated, measured(0.052, 0.1806, 9), "step_time").empty());
  CHECK_FALSE(drift(stated, measured(0.052, 0.18, 8), "step_time").empty());
}

}  // namespace
}  // namespace qplan
