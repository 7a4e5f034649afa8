#pragma once
// Measured runs beside their predictions, and what errors sum up to.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/json_fwd.h"
#include "planner/runs/accuracy.h"
#include "planner/runs/predict_runs.h"

namespace qplan {

// A run, its prediction, and both as statistics see them.
struct JudgedRun {
  MeasuredRun run;
  RunPrediction prediction;
  Outcome outcome;
};

JudgedRun judge(MeasuredRun run, RunPrediction prediction);

// Memory as it is measured: what PyTorch allocated, or else reserved.
double predicted_memory_gib(const Estimate& e, const MeasuredRun& run);
// ... beside its prediction, of whatever kind; nothing where either is missing.
std::optional<Pair> memory_pair(const JudgedRun& judged);

// What the rows may be grouped by; the words of --by.
struct GroupKey {
  std::string_view name;
  std::string MeasuredRun::*value;
};
const std::vector<GroupKey>& group_keys();

struct AccuracyQuestion {
  std::vector<std::string> files, by, grades;
  std::size_t left_out = 0;  // rows of other grades
  bool rows = false;         // one by one, in text
};

struct FigureGroup {
  std::vector<std::string> names;  // one a word of --by
  Figures figures;
};

struct Leave {
  std::string source;
  Figures only, others;  // of the source, and of the rows without it
};

struct Accuracy {
  Figures all, by_source, trusted;  // trusted: without the runs in `apart`
  Outcomes apart;                   // runs that a twin contradicts
  std::vector<FigureGroup> groups;
  std::vector<Leave> sources;
  ErrorFigures unknown_memory;  // memory whose kind is not stated, against reserved
  std::map<std::string, std::size_t> unknown_flags;
};

Accuracy summarise(const std::vector<JudgedRun>& runs, const AccuracyQuestion& question);

}  // namespace qplan
