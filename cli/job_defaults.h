#pragma once
// Batch and length of a job where nobody says them, and how they were chosen.

#include <cstdint>
#include <span>
#include <string>

#include "models/json_fwd.h"
#include "models/model_spec.h"
#include "models/plan/parallel_plan.h"

namespace qplan {

// What `--help` says of the batch.
inline constexpr const char* kDefaultBatch = "near 4 Mi tokens";
inline constexpr const char* kDefaultLength = "4096, or the model's positions if fewer";

// A sentence for each that was chosen, without its full stop; empty: it was said.
struct JobDefaults {
  std::string batch, length;
};

struct SaidOfJob {
  bool batch = false, length = false;
};

// Sets what was not said. `worlds`: the GPUs of the job, or of all jobs that are compared.
JobDefaults set_defaults(ParallelPlan& job, SaidOfJob said, const ModelSpec& model,
                         std::span<const std::int64_t> worlds);

// A line for each; nothing where all was said.
std::string defaults_text(const JobDefaults& defaults);
// {"global_batch_size": sentence or null, "seq_len": sentence or null}
Json defaults_json(const JobDefaults& defaults);

}  // namespace qplan
