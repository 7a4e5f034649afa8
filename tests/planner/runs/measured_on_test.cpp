// costmodel/measured.tsv against the files of measured runs that it names. What those runs tell of
// intervals is written anew by
//   QPLAN_WRITE_TABLE=1 planner_test -tc="*what was measured*"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <tuple>

#include "costmodel/evaluate.h"
#include "costmodel/measured.h"
#include "costmodel/profiles/hardware.h"
#include "models/csv.h"
#include "models/json.h"
#include "models/statistics.h"
#include "planner/runs/measured_runs.h"
#include "planner/runs/predict_runs.h"

using namespace qplan;

namespace {

const std::string kTable = QPLAN_TEST_DATA "/../../costmodel/measured.tsv";

using OnGpu = std::tuple<RecipeKind, std::string, bool>;  // adapters

// Half of the interval over the step time that would be stated had no run told of it: what the
// launching thread adds is not widened.
double unwidened_half_width(const Estimate& e, const MeasuredOn* known, double launch) {
  const double widening = known == nullptr ? 1 : known->widening();
  const double launching = kIntervalSigmas * launch * (e.time.host / e.step_time);
  const double widened = half_width(e);
  const double rest = std::sqrt(widened * widened - launching * launching) / widening;
  return std::sqrt(rest * rest + launching * launching);
}

// Of each pair's runs that have a step time: how far off the prediction was, over half of the
// interval that would be stated had no run told of it.
std::map<OnGpu, Weighted> reaches_of(const std::string& file) {
  const auto runs = read_measured_runs(read_csv_file(QPLAN_TEST_DATA "/runs/" + file));
  const auto predictions = predict_runs(runs);
  std::map<OnGpu, Weighted> reaches;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const MeasuredRun& run = runs[i];
    const auto& estimate = predictions[i].estimate;
    if (!run.inputs || !run.step_time || !estimate || run.grade == "C") continue;
    const HardwareProfile hardware = load_hardware(run.inputs->hardware);
    const OnGpu key(run.inputs->recipe, hardware.gpu.name, run.inputs->plan.lora_rank > 0);
    const MeasuredOn* known = std::apply(find_measured_on, key);
    const double half = unwidened_half_width(*estimate, known, hardware.errors.launch);
    const double off = std::abs((*run.step_time - estimate->step_time).value());
    reaches[key].emplace_back(off / (half * estimate->step_time.value()), 1);
  }
  return reaches;
}

// The table's text with what runs tell now.
std::string table_of(const std::map<std::string, std::map<OnGpu, Weighted>>& reaches) {
  const std::string old = read_text_file(kTable);
  std::string text = old.substr(0, old.find("recipe\t"));
  text += "recipe\tgpu\ttraining\truns\treach_percent\twhere\n";
  for (const MeasuredOn& known : measured_on()) {
    std::string counted = "\t";
    if (const auto file = reaches.find(known.where); file != reaches.end()) {
      const Weighted& found = file->second.at({known.recipe, known.gpu, known.adapters});
      counted = fmt::format("{}\t{:.0f}", found.size(), 100 * *quantile(found, 0.8));
    }
    text += fmt::format("{}\t{}\t{}\t{}\t{}\n", to_word(known.recipe), known.gpu,
                        known.adapters ? "adapters" : "whole", counted, known.where);
  }
  return text;
}

}  // namespace

TEST_CASE("the table of what was measured says what the files of runs do") {
  std::map<std::string, std::map<OnGpu, Weighted>> reaches;
  for (const std::string file : {"published.csv", "finetuning.csv"}) {
    reaches[file] = reaches_of(file);
    for (const auto& [key, found] : reaches[file]) {
      CAPTURE(to_word(std::get<0>(key)));
      CAPTURE(std::get<1>(key));
      CAPTURE(std::get<2>(key));
      CHECK(std::apply(find_measured_on, key) != nullptr);
    }
  }
  for (const MeasuredOn& known : measured_on()) {
    const auto file = reaches.find(known.where);
    if (file == reaches.end()) continue;
    CAPTURE(to_word(known.recipe));
    CAPTURE(known.gpu);
    REQUIRE(file->second.contains({known.recipe, known.gpu, known.adapters}));
  }
  const std::string table = table_of(reaches);
  if (std::getenv("QPLAN_WRITE_TABLE") != nullptr) {
    write_file_atomically(kTable, table);
    return;
  }
  INFO("costmodel/measured.tsv says other; this test writes it anew (QPLAN_WRITE_TABLE=1)");
  CHECK(read_text_file(kTable) == table);
}

TEST_CASE("runs widen or narrow an interval the more of them there are") {
  const auto widening = [](int runs, double reach) {
    return MeasuredOn{.recipe = RecipeKind::megatron,
                      .gpu = "",
                      .adapters = false,
                      .runs = runs,
                      .reach = reach,
                      .where = ""}
        .widening();
  };
  CHECK(widening(0, 1) == 1);
  CHECK(widening(100, 1) == 1);
  CHECK(widening(20, 1.44) == doctest::Approx(1.2));
  CHECK(widening(20, 0.64) == doctest::Approx(0.8));
  CHECK(widening(2000, 1.44) == doctest::Approx(1.436).epsilon(0.001));
}
