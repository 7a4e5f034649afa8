#include "cli/check_text.h"

#include <fmt/format.h>

#include <ostream>
#include <string_view>

#include "cli/page.h"
#include "cli/print.h"
#include "cli/report.h"
#include "models/text.h"

namespace qplan {
namespace {

std::string_view with_s(std::int64_t count) {
  return count == 1 ? "" : "s";
}

void print_findings(const FoundInFiles& found, std::ostream& out) {
  const Checked& checked = found.checked;
  for (const Finding& finding : checked.findings) {
    out << wrapped(fmt::format("{}: {}: {} [{}]", to_string(finding.place),
                               to_word(finding.severity), finding.message, finding.rule),
                   page().text, 4);
    if (!finding.instead.empty()) {
      out << wrapped("    instead: " + finding.instead, page().text, 13);
    }
    if (!finding.source.empty()) out << wrapped("    source:  " + finding.source, page().text, 13);
    if (!found.wants_fix) continue;
    const std::string why = why_stands(found, finding);
    if (finding.severity == Severity::note && finding.fix.empty() && !why.empty()) continue;
    out << wrapped("    --fix:   " + (why.empty() ? "corrected" : "left: " + why), page().text, 13);
  }
  const auto errors = checked.count(Severity::error), warnings = checked.count(Severity::warning),
             notes = checked.count(Severity::note);
  if (errors + warnings + notes == 0) {
    out << "No findings.\n";
    return;
  }
  print(out, "\n{} error{}, {} warning{}, {} note{}\n", errors, with_s(errors), warnings,
        with_s(warnings), notes, with_s(notes));
}

std::string speed_text(const Job& job, const Answer& answer) {
  if (!answer.estimate) return "cannot run";
  const Estimate& e = *answer.estimate;
  return fmt::format("{} of {} on the worst GPU{}; {} a step, {} tokens/s a GPU, MFU {}",
                     human_bytes(e.memory.worst_stage().device), human_bytes(e.capacity),
                     answer.feasible() ? "" : " (does not fit)", human_seconds(e.step_time),
                     significant(e.tokens_per_s_per_gpu, 4), mfu_text(job, answer));
}

void print_best_step(const FoundInFiles& found, std::ostream& out) {
  const RlStep& asked = *found.best_step_asked;
  const bool same = found.step && found.step->step_time == found.best_step->step_time;
  if (same) {
    out << "best      the same: no step that was found is faster\n";
    return;
  }
  out << wrapped(fmt::format("best      {} (by {})", line_of(*found.best_job, found.best->plan),
                             to_word(found.best_job->framework)),
                 page().text, 10);
  if (asked.job.generates()) {
    out << wrapped(fmt::format("          answers by engines of {}", to_string(asked.layout)),
                   page().text, 10);
  }
  out << phases_text(*found.best_step);
  if (found.step && found.step->fits) {
    out << fmt::format("          {} times as fast as this step\n",
                       significant(found.step->step_time / found.best_step->step_time));
  }
}

}  // namespace

void print_check_job(const FoundInFiles& found, std::ostream& out) {
  const Checked& checked = found.checked;
  for (const std::string& path : found.written) print(out, "corrected copy: {}\n", path);
  if (found.wants_fix && found.written.empty()) out << "nothing was corrected\n";
  if (!found.yours) return;
  out << '\n' << model_line(*found.job);
  for (const std::string& sentence : checked.assumed)
    out << wrapped("assumed: " + sentence, page().text, 9);
  out << wrapped("this job  " + line_of(*found.job, checked.plan), page().text, 10)
      << (found.step
              ? std::string()
              : wrapped("          " + speed_text(*found.job, *found.yours), page().text, 10));
  if (found.step) out << rl_job_text(checked.step->job) << phases_text(*found.step);
  if (!found.best && !found.searched) return;
  if (found.best_step) return print_best_step(found, out);
  if (!found.best) {
    out << "best      no plan fits these GPUs";
    out << (found.would_fit.empty() ? "\n" : "; one would with:\n" + advice_text(found.would_fit));
    return;
  }
  if (found.best->plan == checked.plan && found.best_job->framework == found.job->framework) {
    out << "best      the same: no plan that was found is faster\n";
    return;
  }
  const std::string_view recipe = to_word(found.best_job->framework);
  out << wrapped(fmt::format("best      {} (by {})", line_of(*found.best_job, found.best->plan),
                             recipe),
                 page().text, 10)
      << wrapped("          " + speed_text(*found.best_job, *found.best), page().text, 10);
  if (found.yours->feasible()) {
    const double ratio = found.yours->estimate->step_time / found.best->estimate->step_time;
    const bool tie = cannot_be_told(*found.best, *found.yours);
    out << fmt::format("          {} times as fast as this job{}\n", significant(ratio),
                       tie_text(tie));
  }
}

void print_check_text(const CheckAnswer& answer, bool each, std::ostream& out) {
  for (std::size_t i = 0; i < answer.jobs.size(); ++i) {
    const FoundInFiles& found = answer.jobs[i];
    if (each) print(out, "{}{}:\n", i > 0 ? "\n" : "", found.files.front().name);
    print_findings(found, out);
    print_check_job(found, out);
  }
}

}  // namespace qplan
