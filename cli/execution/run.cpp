// `qplan run`: executes a plan.

#include <fmt/format.h>

#include <ostream>

#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/execution/execution.h"
#include "cli/notes.h"
#include "cli/output.h"
#include "cli/page.h"
#include "cli/print.h"

namespace qplan {
namespace {

// A line a step, written as the step ends; columns are as wide as their headings, or the largest
// loss and step that are likely.
class StepLines {
 public:
  StepLines(std::ostream& out, bool predicts_two) : out_(out), predicts_two_(predicts_two) {}

  void head() {
    line("step", "loss", "MTP loss", "gradient norm", "time");
    line("", "", "", "", "(s)");
  }
  void step(const StepReport& done) {
    line(fmt::format("{}", done.number), fixed(done.loss, 6), fixed(done.mtp_loss, 6),
         significant(done.grad_norm, 4), significant(done.time.value()));
  }

 private:
  void line(const std::string& step, const std::string& loss, const std::string& mtp_loss,
            const std::string& norm, const std::string& time) {
    std::string text = fmt::format("{:>6}  {:>9}", step, loss);
    if (predicts_two_) text += fmt::format("  {:>9}", mtp_loss);
    print(out_, "{}  {:>13}  {:>8}\n", text, norm, time);
    out_.flush();
  }

  std::ostream& out_;
  bool predicts_two_;
};

void print_head(const Execution& execution, std::ostream& out) {
  const std::string threads =
      fmt::format("{} threads of this machine's processor", execution.plan.world());
  out << model_line(*execution.job, execution.process ? "" : threads)
      << wrapped("plan         " + line_of(*execution.job, execution.plan), page().text, 13)
      << notes_text(execution.notes) << '\n';
}

void print_summary(const Executed& executed, std::ostream& out) {
  const RunResult& r = executed.result;
  print(out, "\nstep time    {} median, {} .. {}; {} tokens/s a rank\n",
        human_seconds(executed.median), human_seconds(executed.least), human_seconds(executed.most),
        significant(executed.tokens_per_s_per_gpu));
  print(out, "memory       {} at once on the fullest rank, in an arena of {}\n",
        human_bytes(largest(r.live_peak)), human_bytes(largest(r.arena)));
  if (r.device_peak) {
    print(out, "             {} of the device's, libraries included\n",
          human_bytes(*r.device_peak));
  }
}

}  // namespace

Exit run_run(const Args& args, const Console& console) {
  ExecutionChoices choices;
  std::string trace;
  bool json = false;
  CommandLine line("run", "Executes a plan: its losses, gradient norms, memory and step time.",
                   "qplan run plan.json --backend cpu --steps 20\n"
                   "         qplan run \"tp2 pp2 gbs8 seq64\" --model tiny --save checkpoints");
  add_execution_options(line, choices);
  line.group("Output");
  line.flag("--json", "the same as JSON", json);
  line.option(
      {"--trace", "FILE",
       "the last step as a Perfetto trace (on GPUs of rank 0; FILE.rank1 and so on of the others)",
       ""},
      set_text(trace));
  if (!line.parse(args, console.out)) return Exit::done;
  refuse_standard_output("--trace", trace);

  const Execution execution = prepare(choices);
  if (const auto exit = run_by_local_ranks(execution, choices, "run", args, console)) return *exit;
  RunOptions extra;
  extra.keep_trace = !trace.empty();
  StepLines lines(console.out, execution.job->model.num_mtp_layers > 0);
  if (!json && reports(execution)) {
    extra.progress = [&](const StepReport& done) {
      if (done.step == 0) {
        print_head(execution, console.out);
        lines.head();
      }
      lines.step(done);
    };
  } else {
    extra.progress = progress_line(console, choices);
  }
  const Executed executed = execute(execution, choices, extra);
  if (!trace.empty()) {
    // On GPUs every rank is a process and knows its own step: one file each.
    const std::string file =
        reports(execution) ? trace : fmt::format("{}.rank{}", trace, execution.process->rank);
    write_file_atomically(file, to_chrome_json(executed.result.trace));
  }
  if (!reports(execution)) return Exit::done;
  if (json) {
    console.out << answer_text("run", to_json(execution, executed, choices));
  } else {
    print_summary(executed, console.out);
  }
  return Exit::done;
}

}  // namespace qplan
