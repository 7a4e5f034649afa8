// `qplan validate`: a plan executed and predicted, side by side.

#include <algorithm>
#include <cmath>
#include <optional>
#include <ostream>

#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/execution/execution.h"
#include "cli/notes.h"
#include "cli/op_totals.h"
#include "cli/page.h"
#include "cli/print.h"
#include "models/error.h"

namespace qplan {
namespace {

struct Comparison {
  OpComparison ops;
  std::vector<Bytes> predicted_peak, executed_peak;  // of each pipeline rank
  Seconds predicted_step, executed_step;
  // Where routers chose: how they spread the tokens, and what is predicted of that.
  std::optional<ExpertLoad> routed;
  Seconds routed_step;
  Seconds traced_step, busy;  // of the step that was traced: all of it; some op of rank 0 ran

  [[nodiscard]] double memory_error() const {
    double worst = 0;
    for (std::size_t i = 0; i < executed_peak.size(); ++i) {
      worst = std::max(worst, std::abs(predicted_peak[i] / executed_peak[i] - 1));
    }
    return worst;
  }
  [[nodiscard]] double time_error() const { return predicted_step / executed_step - 1; }
};

// Time in which at least one op of a rank ran.
Seconds busy_time(const Trace& trace, int rank) {
  std::vector<std::pair<double, double>> intervals;
  for (const TraceEvent& e : trace.events) {
    if (e.rank == rank) intervals.emplace_back(e.begin.value(), e.end.value());
  }
  std::sort(intervals.begin(), intervals.end());
  double busy = 0, until = 0;
  for (const auto& [begin, end] : intervals) {
    busy += std::max(0.0, end - std::max(begin, until));
    until = std::max(until, end);
  }
  return Seconds(busy);
}

Comparison compare(const Execution& execution, const Executed& executed) {
  const Estimate& e = *execution.predicted.estimate;
  Comparison c;
  const RankGrid grid = rank_grid(execution.plan, execution.job->cost->facts());
  c.ops = compare_ops(trace_as_timed(execution), executed.result.trace, grid);
  for (const StageMemory& stage : e.memory.stages) c.predicted_peak.push_back(stage.peak);
  c.executed_peak = executed.result.live_peak;
  c.predicted_step = e.step_time;
  c.executed_step = executed.median;
  if (execution.plan.routing == Routing::natural && executed.result.expert_load) {
    c.routed = executed.result.expert_load;
    c.routed_step = step_time_as_routed(execution, *c.routed);
  }
  c.traced_step = executed.result.step_time.back();
  c.busy = busy_time(executed.result.trace, 0);
  return c;
}

KindTotals at(const OpTotals& totals, const std::string& kind) {
  const auto found = totals.find(kind);
  return found == totals.end() ? KindTotals{} : found->second;
}

std::string kinds_text(const Comparison& c) {
  Table table({{"kind of op", "", Align::left},
               {"predicted", "ops"},
               {"executed", "ops"},
               {"predicted", "ms"},
               {"executed", "ms"},
               {"waited", "ms"}});
  for (const std::string& kind : c.ops.kinds()) {
    const KindTotals p = at(c.ops.predicted, kind), x = at(c.ops.executed, kind);
    table.row({kind, std::to_string(p.ops), std::to_string(x.ops),
               significant(p.time.value() * 1e3), significant(x.time.value() * 1e3),
               x.waited > Seconds() ? significant(x.waited.value() * 1e3) : ""});
  }
  return table.text(page().table);
}

std::string memory_text(const Comparison& c) {
  Table table({{"stage", ""}, {"predicted", "bytes"}, {"executed", "bytes"}, {"error", "%"}});
  for (std::size_t i = 0; i < c.executed_peak.size(); ++i) {
    const double p = c.predicted_peak[i].value(), x = c.executed_peak[i].value();
    table.row({std::to_string(i), grouped(static_cast<std::int64_t>(p)),
               grouped(static_cast<std::int64_t>(x)), percent(p / x - 1)});
  }
  return table.text(page().table);
}

void print_text(const Execution& execution, const Comparison& c, std::ostream& out) {
  out << model_line(*execution.job)
      << wrapped("plan         " + line_of(*execution.job, execution.plan), page().text, 13)
      << notes_text(execution.notes)
      << (std::ssize(c.ops.pipeline_ranks) == execution.plan.pp
              ? "\nOne step of each pipeline rank's first rank:\n"
              : "\nOne step of the first pipeline rank's first rank:\n")
      << kinds_text(c) << "\nMost bytes allocated at once:\n"
      << memory_text(c);
  print(out, "\nstep time    predicted {} on {}, executed {} on this machine's {}\n",
        human_seconds(c.predicted_step), execution.job->hardware.name,
        human_seconds(c.executed_step), execution.process ? "GPUs" : "processor");
  if (!c.routed) return;
  print(out,
        "             predicted {} of tokens as the routers spread them: {} of the experts had "
        "any, the busiest rank {} of the mean\n",
        human_seconds(c.routed_step), percent(c.routed->active), percent(c.routed->busiest));
}

Json to_json(const Comparison& c) {
  Json kinds = Json::array();
  for (const std::string& kind : c.ops.kinds()) {
    const KindTotals p = at(c.ops.predicted, kind), x = at(c.ops.executed, kind);
    kinds.push_back({{"kind", kind},
                     {"predicted_ops", p.ops},
                     {"executed_ops", x.ops},
                     {"predicted_s", p.time.value()},
                     {"executed_s", x.time.value()},
                     {"waited_s", x.waited.value()}});
  }
  Json stages = Json::array();
  for (std::size_t i = 0; i < c.executed_peak.size(); ++i) {
    stages.push_back({{"stage", i},
                      {"predicted_peak_gib", in_gib(c.predicted_peak[i])},
                      {"executed_peak_gib", in_gib(c.executed_peak[i])}});
  }
  Json routed;
  if (c.routed) {
    routed = {{"active_experts", c.routed->active},
              {"busiest_rank", c.routed->busiest},
              {"predicted_step_s", c.routed_step.value()},
              {"step_time_error", c.routed_step / c.executed_step - 1}};
  }
  return {{"kinds", kinds},
          {"kinds_of_pipeline_ranks", c.ops.pipeline_ranks},
          {"stages", stages},
          {"as_routed", routed},
          {"same_ops", c.ops.same_ops()},
          {"traced_step_s", c.traced_step.value()},
          {"busy_s", c.busy.value()},
          {"memory_error", c.memory_error()},
          {"step_time_error", c.time_error()}};
}

}  // namespace

Exit run_validate(const Args& args, const Console& console) {
  ExecutionChoices choices;
  choices.steps = 3;
  std::optional<double> max_error;
  bool json = false;
  CommandLine line(
      "validate", "A plan executed and predicted, side by side: per kind of op, step time, memory.",
      "qplan validate plan.json --backend cpu\n"
      "         qplan validate \"tp2 pp2 gbs8 seq64\" --model tiny");
  add_execution_options(line, choices);
  line.group("Output");
  line.option(
      {"--max-error", "SHARE",
       "largest error of the memory; above it, or when other ops ran, the exit code is 1", "any"},
      set_given(max_error, set_number, 0.0, 1e9));
  line.flag("--json", "the same as JSON", json);
  if (!line.parse(args, console.out)) return Exit::done;

  const Execution execution = prepare(choices);
  if (const auto exit = run_by_local_ranks(execution, choices, "validate", args, console))
    return *exit;
  RunOptions extra;
  extra.keep_trace = true;
  extra.progress = progress_line(console, choices);
  const Executed executed = execute(execution, choices, extra);
  if (!reports(execution)) return Exit::done;
  const Comparison comparison = compare(execution, executed);
  if (json) {
    Json object = to_json(execution, executed, choices);
    object["comparison"] = to_json(comparison);
    console.out << answer_text("validate", object);
  } else {
    print_text(execution, comparison, console.out);
  }
  // The reference backend's times say nothing about a GPU.
  const double error = execution.process
                           ? std::max(comparison.memory_error(), std::abs(comparison.time_error()))
                           : comparison.memory_error();
  const bool over = max_error && (error > *max_error || !comparison.ops.same_ops());
  return over ? Exit::nothing_fits : Exit::done;
}

}  // namespace qplan
