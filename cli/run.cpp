// `qplan run`: executes a plan.

#include <fmt/format.h>

#include <ostream>

#include "cli/commands.h"
#include "cli/execution.h"
#include "cli/print.h"

namespace qplan {
namespace {

std::string losses_text(const RunResult& result) {
  const bool predicts_two = !result.mtp_loss.empty();
  std::vector<Table::Column> columns{{"step", ""}, {"loss", ""}};
  if (predicts_two) columns.push_back({"next token's", ""});
  columns.insert(columns.end(), {{"gradient norm", ""}, {"time", "s"}});
  Table table(columns);
  for (std::size_t i = 0; i < result.loss.size(); ++i) {
    std::vector<std::string> row{std::to_string(result.first_step + static_cast<std::int64_t>(i)),
                                 fixed(result.loss[i], 6)};
    if (predicts_two) row.push_back(fixed(result.mtp_loss[i], 6));
    row.push_back(significant(result.grad_norm[i], 4));
    row.push_back(significant(result.step_time[i].value()));
    table.row(row);
  }
  return table.text();
}

void print_text(const Execution& execution, const Executed& executed, std::ostream& out) {
  const RunResult& r = executed.result;
  const std::string threads =
      fmt::format("{} threads of this machine's processor", execution.plan.world());
  out << model_line(*execution.job, execution.process ? "" : threads)
      << wrapped("plan         " + to_string(execution.plan), 116, 13)
      << notes_text(execution.notes) << '\n'
      << losses_text(r);
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
  line.option({"--trace", "FILE", "the last step as a Perfetto trace", ""}, set_text(trace));
  if (!line.parse(args, console.out)) return Exit::done;

  const Execution execution = prepare(choices);
  if (const auto exit = run_by_local_ranks(execution, choices, "run", args)) return *exit;
  RunOptions extra;
  extra.keep_trace = !trace.empty();
  extra.progress = progress_line(console, choices);
  const Executed executed = execute(execution, choices, extra);
  if (!reports(execution)) return Exit::done;
  if (!trace.empty()) write_file_atomically(trace, to_chrome_json(executed.result.trace));
  if (json) {
    console.out << json_text(to_json(execution, executed, choices));
  } else {
    print_text(execution, executed, console.out);
  }
  return Exit::done;
}

}  // namespace qplan
