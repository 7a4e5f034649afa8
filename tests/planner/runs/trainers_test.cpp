// planner/runs/trainers.tsv against the files of measured runs that it names.
#include "planner/runs/trainers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "models/csv.h"
#include "models/error.h"
#include "planner/runs/predict_runs.h"
#include "tests/planner/runs/rows.h"

namespace qplan {
namespace {

const std::string kRuns = QPLAN_TEST_DATA "/runs/";

// Of the rows that a prediction can be asked for.
std::set<std::string> frameworks_of(const std::string& file) {
  const CsvTable table = read_csv_file(kRuns + file);
  const std::vector<MeasuredRun> runs = read_measured_runs(table);
  const auto column = std::find(table.columns.begin(), table.columns.end(), "framework");
  REQUIRE(column != table.columns.end());
  std::set<std::string> frameworks;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].inputs) continue;
    frameworks.insert(
        table.rows[i].cells[static_cast<std::size_t>(column - table.columns.begin())]);
  }
  return frameworks;
}

TEST_CASE("every trainer of the runs in sight is known, and every known one has runs") {
  std::map<std::string, std::set<std::string>> frameworks;
  for (const char* file : {"published.csv", "finetuning.csv", "finetuning_h100.csv"}) {
    frameworks[file] = frameworks_of(file);
    for (const std::string& framework : frameworks[file]) {
      CAPTURE(framework);
      CHECK(known_trainers().knows(framework));
    }
  }
  for (const TrainerTable::Trainer& trainer : known_trainers().trainers()) {
    CAPTURE(trainer.name);
    const auto of_file = frameworks.find(trainer.runs);
    if (of_file == frameworks.end()) {
      CHECK(trainer.runs.size() > 20);  // a source in words
      continue;
    }
    const TrainerTable alone("trainer\truns\n" + trainer.name + "\tx\n", "one");
    CHECK(std::any_of(of_file->second.begin(), of_file->second.end(),
                      [&](const std::string& framework) { return alone.knows(framework); }));
  }
}

TEST_CASE("a trainer is known by its name, whatever follows it") {
  for (const char* known : {"", "NeMo", "NeMo 25.04", "nemo-megatron 22.03", "TorchTitan 2026-01",
                            "Megatron-LM main (CI golden values)", "HF Trainer 5"}) {
    CAPTURE(known);
    CHECK(known_trainers().knows(known));
  }
  for (const char* unknown :
       {"nemotron", "PyTorch Lightning", "prime-rl 2026-01", "YaFSDP", "Megatron", "my NeMo"}) {
    CAPTURE(unknown);
    CHECK_FALSE(known_trainers().knows(unknown));
  }
  CHECK_THROWS_AS(TrainerTable("trainer\truns\nx\t\n", "bad.tsv"), Error);
}

TEST_CASE(
    "the interval of a run by a trainer that nobody looked at is wider by what those missed") {
  const auto run = [](const char* framework) {
    return read({{"recipe", "fsdp2"}, {"framework", framework}});
  };
  const std::vector<MeasuredRun> runs{run("PyTorch FSDP2"), run("a trainer of its own")};
  const std::vector<RunPrediction> predictions = predict_runs(runs);
  CHECK(predictions[0].estimate->step_time.value() == predictions[1].estimate->step_time.value());
  const double known = half_width(*predictions[0].estimate);
  CHECK(half_width(*predictions[1].estimate) ==
        doctest::Approx(std::sqrt(known * known + std::pow(1.28 * 0.16, 2))));
}

}  // namespace
}  // namespace qplan
