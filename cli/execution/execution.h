#pragma once
// A plan that is executed: what `run` and `validate` ask, and what came of it.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/job.h"
#include "cli/plan_words.h"
#include "cli/report.h"
#include "executor/launch.h"
#include "executor/run.h"

namespace qplan {

// Where a plan is executed.
enum class BackendKind : std::uint8_t { cpu, cuda };
template <>
struct Words<BackendKind> {
  static constexpr std::string_view what = "backend";
  static constexpr auto table = std::to_array<std::pair<BackendKind, std::string_view>>(
      {{BackendKind::cpu, "cpu"}, {BackendKind::cuda, "cuda"}});
};

struct ExecutionChoices {
  JobChoices job;
  PlanWords words;   // on top of the plan's
  std::string plan;  // a file, or a line of plan words
  BackendKind backend = BackendKind::cpu;
  std::int64_t steps = 10, seed = 1, save_interval = 0;
  OptimizerSettings optimizer{.adamw = {.lr = 1e-3, .weight_decay = 0.1}};
  std::string weights, tokens, load, save;
  double timeout_s = 600;
  bool repeat = false;
};
void add_execution_options(CommandLine& line, ExecutionChoices& choices);

// What will be executed; the recipe is qplan's, whatever the file's was.
struct Execution {
  std::unique_ptr<Job> job;
  ParallelPlan plan;
  Answer predicted;
  std::vector<std::string> notes;      // what a person should know, without full stops
  std::optional<ProcessRank> process;  // on GPUs: which rank a launcher made of this process
};
// Throws Error for a plan that cannot be executed, with the rule that forbids it.
Execution prepare(const ExecutionChoices& choices);

struct Executed {
  RunResult result;
  Seconds median, least, most;  // of a step; the first is left out where there are more
  double tokens_per_s_per_gpu = 0;
};
// What says on a terminal which step is done; empty: nobody looks.
std::function<void(const StepReport&)> progress_line(const Console& console,
                                                     const ExecutionChoices& choices);
Executed execute(const Execution& execution, const ExecutionChoices& choices,
                 const RunOptions& extra = {});

// The predicted step as the executor times one, op by op. In one queue to the GPU the event behind
// a message holds up what stands behind it, so that nothing runs beside anything in that step.
Trace trace_as_timed(const Execution& execution);

// The step time that is predicted where tokens are spread over experts like this.
Seconds step_time_as_routed(const Execution& execution, const ExpertLoad& load);

// This process's environment.
std::optional<std::string> environment(const std::string& name);

// Runs this command once more in a process for each rank, and gives their exit code. Throws
// DeviceError when there are fewer GPUs than ranks, when a rank has failed, and when all are silent
// for so long (0: any time).
Exit run_again_by_local_ranks(std::int64_t ranks, const std::string& verb, const Args& args,
                              Seconds silence = {});

// On several GPUs without a launcher: run_again_by_local_ranks(). Absent: this process executes the
// plan (or its rank of it) itself.
std::optional<Exit> run_by_local_ranks(const Execution& execution, const ExecutionChoices& choices,
                                       const std::string& verb, const Args& args,
                                       const Console& console);
// Whether this process is the one that reports.
bool reports(const Execution& execution);

Bytes largest(const std::vector<Bytes>& bytes);

// The object of docs/reference/contract.md 5.2.
Json to_json(const Execution& execution, const Executed& executed, const ExecutionChoices& choices);

}  // namespace qplan
