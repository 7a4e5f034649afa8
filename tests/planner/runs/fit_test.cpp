#include "planner/runs/fit.h"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>

#include "models/model_spec.h"
#include "models/program/recipe.h"
#include "planner/runs/measured_runs.h"
#include "planner/runs/predict_runs.h"

using namespace qplan;

namespace {

std::optional<Estimate> estimate_on(const HardwareProfile& machine, const ParallelPlan& plan) {
  static const ModelSpec model = load_model("llama3-8b");
  const CostModel cost(model, recipe_of(RecipeKind::megatron), machine, JobFacts{});
  return cost.evaluate(plan);
}

FitRun run_of(const std::string& line, double seconds) {
  const ParallelPlan plan = parse_plan(line);
  return {line, Seconds(seconds),
          [plan](const HardwareProfile& machine) { return estimate_on(machine, plan); }};
}

double predicted(const std::string& line, const FitFactors& factors) {
  return estimate_on(corrected_machine("h100-sxm", factors), parse_plan(line))->step_time.value();
}

const char* const kCompute = "tp1 pp1 dp8 zero1 mbs2 gbs128 seq4096";
const char* const kTalks = "tp8 pp1 dp2 zero1 mbs8 gbs128 seq4096 sp";

double squares(const ProfileFit& fit, bool after) {
  double sum = 0;
  for (const FittedRun& run : fit.runs) {
    sum += std::pow(std::log((after ? run.after_s : run.before_s) / run.measured_s), 2);
  }
  return sum;
}

}  // namespace

TEST_CASE("factors of 1 leave a machine's times as they are") {
  const double before =
      estimate_on(load_hardware("h100-sxm"), parse_plan(kTalks))->step_time.value();
  CHECK(predicted(kTalks, {}) == doctest::Approx(before).epsilon(1e-9));
}

TEST_CASE("each factor moves the times of what it is of") {
  CHECK(predicted(kCompute, {.compute = 0.9}) > 1.05 * predicted(kCompute, {}));
  const double less = predicted(kTalks, {.communication = 0.7});
  CHECK(less > 1.02 * predicted(kTalks, {}));
  CHECK(predicted(kCompute, {.launch = 2}) >= predicted(kCompute, {}));
}

TEST_CASE("a run that was predicted right corrects nothing") {
  const ProfileFit fit = fit_profile("h100-sxm", {run_of(kCompute, predicted(kCompute, {}))});
  for (const FitFactor& factor : fit_factors()) {
    CHECK(fit.factors.*factor.value == doctest::Approx(1).epsilon(1e-3));
  }
  CHECK(fit.narrowed < 1);
}

TEST_CASE("one run moves the factors part of the way, more runs further") {
  const double slow = 1.1 * predicted(kCompute, {});
  std::vector<FitRun> runs{run_of(kCompute, slow)};
  const ProfileFit one = fit_profile("h100-sxm", runs);
  for (int i = 0; i < 7; ++i) runs.push_back(run_of(kCompute, slow));
  const ProfileFit many = fit_profile("h100-sxm", runs);
  const double error = one.runs[0].error_before();
  CHECK(error == doctest::Approx(1 / 1.1 - 1));
  CHECK(std::abs(one.runs[0].error_after()) < 0.8 * std::abs(error));
  CHECK(std::abs(many.runs[0].error_after()) < 0.6 * std::abs(one.runs[0].error_after()));
  CHECK(many.narrowed < one.narrowed);
  CHECK(one.factors.compute < 1);
}

TEST_CASE("runs that a slower network explains are laid to the network") {
  const FitFactors truth{.communication = 0.7};
  std::vector<FitRun> runs;
  for (const char* line : {kCompute, kTalks, "tp4 pp1 dp4 zero1 mbs4 gbs128 seq4096 sp"}) {
    for (int i = 0; i < 3; ++i) runs.push_back(run_of(line, predicted(line, truth)));
  }
  const ProfileFit fit = fit_profile("h100-sxm", runs);
  // Most of it: what is known of a machine beforehand holds every factor to 1.
  CHECK(fit.factors.communication < 0.9);
  CHECK(std::abs(std::log(fit.factors.compute)) <
        0.5 * std::abs(std::log(fit.factors.communication)));
}

TEST_CASE("published runs are never further off, taken together, than they were") {
  const auto rows = read_measured_runs(read_csv_file(QPLAN_TEST_DATA "/runs/published.csv"));
  for (const char* source : {"bloom-", "titan-"}) {
    std::vector<FitRun> runs;
    std::string machine;
    for (const MeasuredRun& row : rows) {
      if (!row.id.starts_with(source) || !row.inputs || !row.step_time) continue;
      if (machine.empty()) machine = row.inputs->hardware;
      if (row.inputs->hardware != machine || runs.size() == 6) continue;
      runs.push_back({row.id, *row.step_time, [row](const HardwareProfile& given) {
                        const auto on = [&given](const std::string&) { return given; };
                        return predict_runs({row}, 1, on).front().estimate;
                      }});
    }
    CAPTURE(source);
    REQUIRE(runs.size() > 1);
    const ProfileFit fit = fit_profile(machine, runs);
    CHECK(squares(fit, true) <= squares(fit, false));
  }
}

TEST_CASE("a profile that was corrected extends the one below and reads back the same") {
  const ProfileFit fit = fit_profile("h100-sxm", {run_of(kCompute, 1.1 * predicted(kCompute, {}))});
  Json profile = fit.overlay;
  profile["extends"] = "h100-sxm";
  const HardwareProfile read = read_hardware(profile, "ours.json");
  CHECK(estimate_on(read, parse_plan(kCompute))->step_time.value() ==
        doctest::Approx(fit.runs[0].after_s));
}
