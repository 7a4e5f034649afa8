#pragma once
// Runs of Megatron-LM's own tests as measured runs: a file of golden values, what a step took and
// allocated, beside the model_config.yaml whose arguments were run
// (docs/reference/contract.md 7.2).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/runs/measured_runs.h"

namespace qplan {

// The files of golden values in a folder and those below it, sorted by path.
std::vector<std::string> golden_files_below(const std::string& folder);

// `gpus`: of the job, where no recipe beside the tests states them. Throws Error for a file that is
// no golden values by its name nor what it holds; a job that cannot be asked about, or a test that
// trains nothing, has no inputs, as a row has none.
MeasuredRun read_golden_run(const std::string& path, std::optional<std::int64_t> gpus = {});

}  // namespace qplan
