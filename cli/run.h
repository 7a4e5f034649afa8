#pragma once
// What `run` and `validate` share: a plan file, a job under the qplan recipe, and what it trains
// on.

#include <cstdint>
#include <memory>
#include <string>

#include "cli/job.h"
#include "cli/options.h"
#include "executor/run.h"
#include "models/parallel_plan.h"

namespace qplan {

struct RunQuestion {
  JobChoices choices;
  std::string plan, backend = "cpu", weights, tokens, precision;
  std::int64_t steps = 1, seed = 1;
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, clip_grad = 1;
  double timeout_s = 0;  // 0: none
  bool repeat = false, deterministic = false, json = false;
};
void add_run_options(CommandLine& line, RunQuestion& question);

// A plan that the executor takes, whatever recipe it was written for.
struct RunJob {
  std::unique_ptr<Job> job;
  ParallelPlan plan;
  std::vector<std::string> notes;  // what differs from the plan file
  RunOptions options;
};
// Throws Error for a plan, a checkpoint or a token file that cannot be used.
RunJob make_run_job(const RunQuestion& question);

RunResult execute(const RunJob& job);

}  // namespace qplan
