#pragma once
// What a prediction of a measured run needs: the row's columns and phrases as a plan, a model and a
// machine.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/model_spec.h"
#include "models/plan/parallel_plan.h"
#include "models/program/recipe.h"
#include "models/units.h"
#include "planner/runs/network.h"
#include "planner/runs/row.h"

namespace qplan {

// Of a run's machine, what phrases ask for.
struct MachineFacts {
  int compute_capability = 0;  // 90
  int gpus_per_node = 0, nvlink_domain = 0;
  Bytes memory;  // of a GPU, usable
};

// The pipeline stage whose GPU a run's memory is of.
enum class MemoryOf : std::uint8_t { fullest_stage, first_stage, last_stage };

template <>
struct Words<MemoryOf> {
  static constexpr std::string_view what = "stage of a run's memory";
  static constexpr auto table = std::to_array<std::pair<MemoryOf, std::string_view>>(
      {{MemoryOf::fullest_stage, "fullest_stage"},
       {MemoryOf::first_stage, "first_stage"},
       {MemoryOf::last_stage, "last_stage"}});
};

struct RunInputs {
  ModelSpec model;
  RecipeKind recipe = RecipeKind::megatron;
  int month = 0;         // of the framework, 202412 (releases.tsv); 0: not stated
  int release = 0;       // the month that the row itself names; 0: none
  std::string hardware;  // a built-in machine, or a profile's file
  MachineFacts machine;
  int gpus_per_node = 0;               // 0: the machine's
  std::optional<NodeNetwork> network;  // none: the machine's
  std::int64_t gpus = 0;
  ParallelPlan plan;
  // Of Megatron's layers: by torch alone (--transformer-impl local); experts one by one, without
  // --moe-grouped-gemm.
  bool torch_layers = false, single_experts = false;
  bool fused_adam = false;        // torch's, of a month whose Trainer has another unasked
  bool fills_from_front = false;  // pipelines: see layout_of_run() in run_inputs.cpp
  bool known_trainer = true;      // trainers.tsv; of others intervals are wider
  MemoryOf memory_of = MemoryOf::fullest_stage;
};

// Cells that say nothing take the framework's default. Adds to `unknown_flags` the words of
// other_flags that nobody has looked at. Throws Error saying what cannot be asked about, BadCell
// for a cell that is no number where one belongs.
RunInputs inputs_of_run(const RunRow& row, std::vector<std::string>& unknown_flags);

}  // namespace qplan
