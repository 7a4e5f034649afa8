#pragma once
// One plan of one job, as somebody puts it: options, a line of plan words, or a plan file, with
// options on top.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cli/job.h"
#include "cli/job_defaults.h"
#include "cli/options.h"
#include "cli/plan_words.h"
#include "planner/rl/rl_step.h"

namespace qplan {

struct PlanQuestion {
  JobChoices choices;
  PlanWords words;   // of options
  std::string plan;  // a plan file or a line of words; empty: the framework's defaults
};

// The options of a question about a plan that was run or is running.
void add_plan_question(CommandLine& line, PlanQuestion& question);

struct AskedPlan {
  std::unique_ptr<Job> job;
  ParallelPlan plan;
  std::string fingerprint;  // of the plan file; empty: none
  JobDefaults defaults;
  Notation notation = Notation::options;
  std::optional<RlStep> step;  // that the plan file keeps around the plan
  std::string placed;  // what is said of layers that nobody placed; empty: they are even, or said
  // The plan that the same question makes of another line and other words.
  std::function<ParallelPlan(const std::string& line, const PlanWords& words)> with;
};
// Throws Error for a plan that cannot be read, and where nobody says how many GPUs there are.
AskedPlan asked_plan(const PlanQuestion& question);

// What is said where the plan alone is meant and its file keeps a step around it; empty: it does
// not.
std::string update_alone_text(const AskedPlan& asked);
// For what repeats whole steps: throws Error where a file's step is more than updates.
void refuse_answers(const AskedPlan& asked, const std::string& file);

// What is wrong with a log of the plan: it says of no step how long it took, or its sizes are
// another plan's (planner/runs/run_log.h, LoggedSizes).
std::string no_step_text(const std::string& log);
std::string other_plan_text(const std::string& log, const std::string& other);

// A path, not a line of words.
bool is_plan_file(const std::string& text);

// Whether options or the line give a word themselves.
bool is_said(std::string_view key, const std::string& line, const PlanWords& words);

}  // namespace qplan
