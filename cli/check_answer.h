#pragma once
// What `qplan check` found, before it is text or JSON.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/advice.h"
#include "cli/answer.h"
#include "cli/check_formats.h"
#include "cli/job.h"
#include "cli/report.h"
#include "cli/rl.h"
#include "planner/frameworks/fix.h"

namespace qplan {

struct FoundInFiles {
  std::vector<ConfigText> files;  // of one job
  Checked checked;
  std::shared_ptr<Job> job;  // in the implementation that the files speak to
  std::optional<Answer> yours;
  std::optional<RlEstimate> step;  // of a job that makes the answers it is trained on
  std::unique_ptr<Job> best_job;   // the same, or another where that one cannot train the model
  std::optional<Answer> best;
  std::optional<RlStep> best_step_asked;  // of such a job: its own with the engines that were found
  std::optional<RlEstimate> best_step;
  bool searched = false;
  std::vector<Advice> would_fit;  // where no plan does
  FixedFiles fixed;               // what --fix writes
  bool wants_fix = false;
  std::vector<std::string> written;  // corrected copies
};

// A file that was named and that no framework reads.
struct SkippedFile {
  std::string file, reason;
};

struct CheckAnswer {
  std::vector<FoundInFiles> jobs;
  std::vector<SkippedFile> skipped;
  [[nodiscard]] std::int64_t count(Severity severity) const {
    std::int64_t sum = 0;
    for (const FoundInFiles& job : jobs) sum += job.checked.count(severity);
    return sum;
  }
};

// The finding that no plan trains the job on its GPUs.
inline constexpr std::string_view kNoPlanFits = "no_plan_fits";

// Why --fix leaves a finding; empty: it corrects it. Of the job no file says anything.
std::string why_stands(const FoundInFiles& found, const Finding& finding);

// Where findings are shown: a finding of the plan or the job as a whole on the job's first file.
std::vector<ShownFinding> shown_findings(const CheckAnswer& answer);

}  // namespace qplan
