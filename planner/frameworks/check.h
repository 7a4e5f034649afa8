#pragma once
// Reads somebody's configuration: what is wrong with it, and the plan it amounts to.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_spec.h"
#include "planner/frameworks/emit.h"
#include "planner/frameworks/readers/job_files.h"
#include "planner/rl/rl_step.h"
#include "planner/rules/feasible.h"

namespace qplan {

struct CheckQuestion {
  const ModelSpec& model;
  const Json& config;    // the model's, as Hugging Face writes it
  ClusterLimits limits;  // with the GPUs of the job
  int gpus_per_node = 8;
  // What the files may not say.
  std::optional<std::int64_t> seq_len, global_batch_size, micro_batch_size;
  // The model was read from the files themselves, which are not compared with it then.
  bool model_of_files = false;
};

struct Checked {
  std::vector<Finding> findings;       // errors first, then by place
  std::optional<Framework> framework;  // nothing: no file speaks of a plan
  RecipeKind recipe = RecipeKind::megatron;
  ParallelPlan plan;
  bool says_plan = false;              // some word of it was said, and it can be simulated
  std::vector<std::string> assumed;    // what the plan took from nowhere: sentences
  std::optional<RlStep> step;          // of a job that makes the answers it is trained on
  std::vector<std::string> undecided;  // keys of words that are not known, and change the plan
  std::int64_t engines = 0;            // of the job's GPUs, that make them alone
  bool takes_less = false;  // the job needs less memory than the plan, by what is assumed
  bool shorter = false;     // its sequences may be, than the plan's: activations are fewer
  [[nodiscard]] bool has(Severity severity) const { return count(severity) > 0; }
  [[nodiscard]] std::int64_t count(Severity severity) const;  // of the findings
};

Checked check(std::span<const ConfigText> files, const CheckQuestion& question);

// What the tables of mistakes say of themselves: ids, and where the frameworks say so.
struct TrapInfo {
  std::string_view rule, source;
};
std::vector<TrapInfo> trap_infos();

}  // namespace qplan
