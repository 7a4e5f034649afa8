#pragma once
// Training runs that somebody measured, one a row of a CSV file (docs/reference/contract.md 7):
// what was run, in the words of a question to the cost model, and what came out.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/csv.h"
#include "models/model_spec.h"
#include "models/parallel_plan.h"
#include "models/program/recipe.h"
#include "models/units.h"
#include "planner/runs/network.h"

namespace qplan {

// Which of PyTorch's counters, or the driver's, a measured memory is.
enum class MemoryKind : std::uint8_t { unknown, allocated, reserved };

template <>
struct Words<MemoryKind> {
  static constexpr std::string_view what = "mem_kind";
  static constexpr std::array<std::pair<MemoryKind, std::string_view>, 3> table{
      {{MemoryKind::unknown, "unknown"},
       {MemoryKind::allocated, "allocated"},
       {MemoryKind::reserved, "reserved"}}};
};

// What a prediction of the run needs.
struct RunInputs {
  ModelSpec model;
  RecipeKind recipe = RecipeKind::megatron;
  int month = 0;                       // of the framework, 202412 (month_of_run); 0: not stated
  std::string hardware;                // a built-in machine
  int gpus_per_node = 0;               // 0: the machine's
  std::optional<NodeNetwork> network;  // none: the machine's
  std::int64_t gpus = 0;
  ParallelPlan plan;
};

struct MeasuredRun {
  std::size_t line = 0;  // of the file
  std::string id, grade;
  std::string source;                   // the id up to its first '-'
  std::string model, recipe, hardware;  // as the file spells them
  bool failed = false;                  // it ran out of memory or never finished
  std::optional<Seconds> step_time;
  std::optional<Bytes> memory;  // of one GPU
  MemoryKind memory_kind = MemoryKind::unknown;

  std::optional<RunInputs> inputs;         // none: the run cannot be asked about
  std::string unpriced;                    // why, in one sentence
  std::vector<std::string> unknown_flags;  // words of other_flags that nobody has looked at
};

// Cells that say nothing take the framework's default. Throws Error with file, line and column for
// a column that is missing and a cell that is no number where one belongs; what is merely not
// modelled leaves the run without inputs.
std::vector<MeasuredRun> read_measured_runs(const CsvTable& table);

// Tokens of a document where a row says that its sequences are packed: it never says how long
// documents are. NeMo's fine-tuning benchmarks pack SQuAD's examples, of some 200 tokens (its
// performance guide; v2.4.0, scripts/performance/utils.py: SquadDataModule with
// PackedSequenceSpecs); collections of instructions have several hundred. Between 256 and 1024 a
// step of Llama-3 8B with 4096 tokens changes by 1%.
inline constexpr std::int64_t kPackedDocument = 512;

// ---- the parts, for tests ----

// Applies the words of an other_flags cell to what the columns said; returns those it does not
// know.
std::vector<std::string> apply_flags(std::string_view flags, RunInputs& inputs);

}  // namespace qplan
