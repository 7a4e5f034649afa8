#pragma once
// `predict` and `search` of a job that is fine-tuned on answers of real lengths, or makes them
// itself: --algorithm and what goes with it.

#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/job.h"
#include "cli/options.h"
#include "models/json.h"
#include "planner/rl/rl_search.h"
#include "planner/rl/rl_step.h"

namespace qplan {

struct RlQuestion {
  std::optional<Algorithm> algorithm;
  RlJob job;
  std::string rollout, lengths;  // a layout's line; a file of lengths
  std::optional<std::int64_t> samples, prompt_len, max_response_len, rollout_gpus;
  std::optional<double> response_len;
  std::string first_option;  // of those that need --algorithm, as it was given
  bool no_reference = false, padded = false, keep_trainer = false, unbalanced = false;
  [[nodiscard]] bool asked() const { return algorithm.has_value(); }
};

void add_rl_options(CommandLine& line, RlQuestion& question);

// The job, with what was not said filled in. Throws Error for options that do not go together, and
// for a file that cannot be read.
RlJob rl_job_of(const RlQuestion& question);
RolloutLayout rollout_layout_of(const RlQuestion& question);
// Throws Error: a step's answers make its batch.
void refuse_batch(bool said);
// The longest sequence that it trains on: prompt and longest answer.
std::int64_t longest_of(const RlJob& job);

// `shared_as_found`: a search looks for who makes answers.
std::string rl_job_text(const RlJob& job, bool shared_as_found = false);
std::string phases_text(const RlEstimate& estimate);
// What is asked for (rl_step_json) and what it costs.
Json rl_json(const RlStep& step, const RlEstimate& estimate);

// A table of a search's combinations.
std::string rl_ranking_text(const Job& trainer, const RlJob& job, const std::vector<RlPlan>& plans);

}  // namespace qplan
