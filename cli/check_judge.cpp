#include "cli/check_judge.h"

#include <fmt/format.h>

#include <string>

#include "cli/answer.h"
#include "cli/report.h"
#include "models/text.h"

namespace qplan {
namespace {

// Why a plan that does not fit may still run; empty: it does not.
std::string doubt_of(const Checked& checked, const Infeasible& reason, const Estimate& estimate,
                     const HardwareProfile& hardware) {
  if (checked.takes_less) return "; the job needs less by what is assumed below";
  if (reason.rule != "out_of_memory") return "";
  const StageMemory& stage = estimate.memory.worst_stage();
  // Shorter sequences keep fewer activations; states are what they are.
  const Bytes states = stage.weights + stage.gradients + stage.optimizer;
  if (checked.shorter && !(states > estimate.capacity)) {
    return "; sequences may be shorter than is assumed below";
  }
  // What a plan leaves free is for the allocator, which may get along with less.
  if (stage.device > hardware.gpu.usable_memory) return "";
  return fmt::format("; the device has {}, and it may just run",
                     human_bytes(hardware.gpu.usable_memory));
}

// A plan that the rules allow and the device does not.
void add_memory_finding(Checked& checked, const Answer& answer, const HardwareProfile& hardware) {
  for (const Infeasible& reason : answer.infeasible) {
    if (!answer.estimate) return;  // the rules said it already
    const std::string doubt = doubt_of(checked, reason, *answer.estimate, hardware);
    checked.findings.insert(checked.findings.begin(),
                            {doubt.empty() ? Severity::error : Severity::warning,
                             std::string(reason.rule),
                             {"the plan", 0},
                             reason.message + doubt,
                             "see the plan below",
                             "qplan predict"});
  }
}

// A step that cannot be, where no finding says so yet; or one of which some phase does not fit the
// device, or what waits for its turn not the host.
void add_step_findings(Checked& checked, const Job& job) {
  const auto& [asked, layout] = *checked.step;
  const bool known = checked.has(Severity::error);
  for (const std::string& fault :
       rl_faults(asked, job.model, checked.plan, layout, job.gpus + asked.rollout_gpus)) {
    if (known || !step_is_job(checked)) break;
    checked.findings.insert(checked.findings.begin(), {Severity::error,
                                                       "step_faults",
                                                       {"the step", 0},
                                                       fault,
                                                       "see the step below",
                                                       "qplan predict"});
  }
  const std::optional<RlEstimate> e = estimate_step(job, checked);
  if (e && e->fits && e->longest > e->capacity) {
    checked.findings.push_back(
        {Severity::note,
         "long_answers_memory",
         {"the step", 0},
         fmt::format("the update fits with answers of the length that is assumed, and takes {} of "
                     "the {} that may be filled once all of a micro-batch are of the longest ({} "
                     "tokens): it runs out of memory after some steps if answers grow",
                     human_bytes(e->longest), human_bytes(e->capacity), e->longest_tokens),
         fmt::format("fewer answers a micro-batch, or micro-batches by tokens, of {} at most",
                     e->tokens_that_fit),
         "qplan predict"});
  }
  if (!e || e->fits) return;
  // Formats of slime's engines (int4, fp8) are the checkpoint's, which no argument says.
  const bool sure = !checked.takes_less && step_is_job(checked);
  checked.findings.insert(
      checked.findings.begin(),
      {sure ? Severity::error : Severity::warning,
       "step_memory",
       {"the step", 0},
       sure ? e->misfit : e->misfit + "; the job needs less by what is assumed below",
       "see the phases below",
       "qplan predict"});
}

}  // namespace

Checked FileJudge::operator()(std::span<const ConfigText> files) {
  Checked checked = check_files(question_, job_, files);
  if (speaks_of_plan(checked)) {
    const Job& job = *job_of(checked);
    const Answer answer = ask(job, checked.plan);
    if (!step_is_job(checked)) add_memory_finding(checked, answer, job.hardware);
    // Of slime's step what checks of its arguments say comes first.
    const bool judged = step_is_job(checked) || !checked.has(Severity::error);
    if (checked.step && answer.estimate && judged) {
      add_step_findings(checked, job);
    }
  }
  return checked;
}

std::shared_ptr<Job> FileJudge::job_of(const Checked& checked) {
  std::shared_ptr<Job>& job = jobs_[checked.recipe];
  if (job == nullptr) job = job_of_files(question_, checked);
  return job;
}

std::optional<RlEstimate> estimate_step(const Job& job, const Checked& checked) {
  if (!checked.step) return std::nullopt;
  const auto& [asked, layout] = *checked.step;
  const std::int64_t gpus = job.gpus + asked.rollout_gpus;
  if (!rl_faults(asked, job.model, checked.plan, layout, gpus).empty()) return std::nullopt;
  if (!ask(job, update_plan(asked, job.model, checked.plan)).estimate) return std::nullopt;
  return evaluate_rl(*job.cost, asked, checked.plan, layout, gpus);
}

}  // namespace qplan
