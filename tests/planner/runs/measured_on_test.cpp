#include <doctest/doctest.h>

#include <set>

#include "costmodel/measured.h"
#include "costmodel/profiles/hardware.h"
#include "models/csv.h"
#include "planner/runs/measured_runs.h"

using namespace qplan;

namespace {

using Pairs = std::set<std::pair<RecipeKind, std::string>>;

// What a file of measured runs has step times of.
Pairs pairs_of(const std::string& file) {
  Pairs pairs;
  const std::string path = std::string(QPLAN_TEST_DATA "/runs/") + file;
  for (const MeasuredRun& run : read_measured_runs(read_csv_file(path))) {
    if (!run.inputs || !run.step_time) continue;
    pairs.emplace(run.inputs->recipe, load_hardware(run.inputs->hardware).gpu.name);
  }
  return pairs;
}

}  // namespace

TEST_CASE("the table of what was measured says what the files of runs do") {
  Pairs all;
  for (const std::string file : {"published.csv", "finetuning.csv"}) {
    Pairs said;
    for (const MeasuredOn& known : measured_on()) {
      if (known.where == file) said.emplace(known.recipe, known.gpu);
    }
    const Pairs found = pairs_of(file);
    all.insert(found.begin(), found.end());
    for (const auto& [recipe, gpu] : said) {
      CAPTURE(to_word(recipe));
      CAPTURE(gpu);
      CHECK(found.contains({recipe, gpu}));
    }
  }
  for (const auto& [recipe, gpu] : all) {
    CAPTURE(to_word(recipe));
    CAPTURE(gpu);
    CHECK(was_measured_on(recipe, gpu));
  }
}
