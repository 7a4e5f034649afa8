#pragma once
// The plan that a framework's files amount to, and the job that it is a plan of.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/job.h"
#include "planner/frameworks/check.h"
#include "planner/search/search.h"

namespace qplan {

struct FilesQuestion {
  JobChoices choices;
  std::optional<std::int64_t> seq_len, global_batch_size, micro_batch_size;  // where no file says
  std::vector<std::string> assumed;  // of a model that the files themselves describe
  bool by_name = false;              // or name: its positions may be another's
};

// A script that states every shape needs no --model, nor does one that names a built-in model.
void read_model_of_files(FilesQuestion& question, const std::vector<ConfigText>& files);

// The GPUs that the files themselves say, of their launcher or their own keys. Nothing: they do
// not.
std::optional<std::int64_t> gpus_of_files(const std::vector<ConfigText>& files);

// `job`: of the question's choices, in whatever implementation.
Checked check_files(const FilesQuestion& question, const Job& job,
                    std::span<const ConfigText> files);
bool speaks_of_plan(const Checked& checked);

// Whose files say the whole step and all its GPUs. slime's say a plan of Megatron's with its own
// batch, and engines' GPUs beside the job's.
bool step_is_job(const Checked& checked);

// The same job in the implementation that the files speak to, on the GPUs that train.
std::unique_ptr<Job> job_of_files(const FilesQuestion& question, const Checked& checked);

// Every plan of a plan's own job: what makes it this job and no other (sequences, batch, adapters)
// stands.
SearchSpace space_of_job(const ParallelPlan& plan, std::int64_t gpus);

}  // namespace qplan
