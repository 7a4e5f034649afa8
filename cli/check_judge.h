#pragma once
// What `qplan check` says of a job's files, the memory of their plan included.

#include <map>
#include <memory>
#include <optional>
#include <span>

#include "cli/files_plan.h"
#include "cli/rl.h"

namespace qplan {

class FileJudge {
 public:
  FileJudge(const FilesQuestion& question, const Job& job) : question_(question), job_(job) {}

  Checked operator()(std::span<const ConfigText> files);

  // The same job in the implementation that files speak to, on the GPUs that train.
  std::shared_ptr<Job> job_of(const Checked& checked);

 private:
  const FilesQuestion& question_;
  const Job& job_;
  std::map<RecipeKind, std::shared_ptr<Job>> jobs_;
};

// The phases of a step, each on its GPUs: those that make answers, too. Nothing: the step cannot
// be, which findings say.
std::optional<RlEstimate> estimate_step(const Job& job, const Checked& checked);

}  // namespace qplan
