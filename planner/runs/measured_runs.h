#pragma once
// Training runs that somebody measured, one a row of a CSV file (docs/reference/contract.md 7):
// what was run, in the words of a question to the cost model, and what came out.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/csv.h"
#include "models/units.h"
#include "models/words.h"
#include "planner/runs/run_inputs.h"

namespace qplan {

// Which of PyTorch's counters, or the driver's, a measured memory is.
enum class MemoryKind : std::uint8_t { unknown, allocated, reserved };

template <>
struct Words<MemoryKind> {
  static constexpr std::string_view what = "mem_kind";
  static constexpr auto table =
      std::to_array<std::pair<MemoryKind, std::string_view>>({{MemoryKind::unknown, "unknown"},
                                                              {MemoryKind::allocated, "allocated"},
                                                              {MemoryKind::reserved, "reserved"}});
};

// Of a run whose every step is known: the middle half of its steps spans more than this share of
// their median. Something that comes and goes takes part of the time.
inline constexpr double kUnsteadySpread = 0.1;

struct MeasuredRun {
  std::size_t line = 0;  // of the file
  std::string id, grade;
  std::string source;                   // the id up to its first '-'
  std::string model, recipe, hardware;  // as the file spells them
  bool failed = false;                  // it ran out of memory or never finished
  std::optional<Seconds> step_time;
  bool unsteady = false;        // its own steps differ by more than kUnsteadySpread
  std::optional<Bytes> memory;  // of one GPU
  MemoryKind memory_kind = MemoryKind::unknown;

  std::optional<RunInputs> inputs;         // none: the run cannot be asked about
  std::string unpriced;                    // why, in one sentence
  std::vector<std::string> unknown_flags;  // words of other_flags that nobody has looked at
};

// Throws Error with file, line and column for a column that is missing and a cell that is no number
// where one belongs; what is merely not modelled leaves the run without inputs.
std::vector<MeasuredRun> read_measured_runs(const CsvTable& table);

}  // namespace qplan
