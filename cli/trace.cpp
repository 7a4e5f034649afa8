// `qplan trace`: one step of a plan over time, for Perfetto or for the terminal.

#include "models/program/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/print.h"
#include "cli/report.h"
#include "costmodel/fold/replay.h"
#include "models/error.h"
#include "models/statistics.h"

namespace qplan {
namespace {

struct TraceQuestion {
  JobChoices choices;
  std::string plan, output;
  std::int64_t columns = 0, rank = -1;
  bool text = false, ops = false;
};

// What happens in [from, to), its time starting at zero.
Trace cropped(const Trace& trace, Seconds from, Seconds to) {
  Trace part{.ranks = trace.ranks, .end = to - from, .events = {}};
  for (TraceEvent event : trace.events) {
    event.begin = std::max(event.begin, from) - from;
    event.end = std::min(event.end, to) - from;
    if (event.end > event.begin) part.events.push_back(std::move(event));
  }
  return part;
}

// The stretch of time in which a middling forward is two columns wide: what the eye can follow.
Seconds readable_stretch(const Trace& trace, int columns) {
  std::vector<double> forwards;
  for (const TraceEvent& event : trace.events) {
    if (event.category == "forward") forwards.push_back((event.end - event.begin).value());
  }
  if (forwards.empty()) return trace.end;
  return Seconds(median_of(std::move(forwards)) * columns / 2);
}

constexpr int kLegendColumns = 80;  // words are not drawn wider than any terminal

void draw(const Trace& trace, int columns, const Console& console) {
  const auto say = [&](const std::string& words, std::size_t indent = 0) {
    const int width = std::min(columns, kLegendColumns);
    console.out << wrapped(words, static_cast<std::size_t>(width), indent);
  };
  const auto print = [&](const Trace& part, const std::string& heading) {
    say(heading);
    console.out << draw_pipeline(part, columns, console.terminal.color) << '\n';
  };
  const Seconds stretch = readable_stretch(trace, columns);
  if (trace.end <= 2 * stretch) {
    print(trace, fmt::format("one step, {}; a row is a pipeline rank", human_seconds(trace.end)));
  } else {
    print(cropped(trace, Seconds(0), stretch),
          fmt::format("the first {} of a step of {}; a row is a pipeline rank",
                      human_seconds(stretch), human_seconds(trace.end)));
    print(cropped(trace, trace.end - stretch, trace.end),
          fmt::format("its last {}", human_seconds(stretch)));
  }
  say("numbers: microbatch; > forward, < backward, w weight gradient, r gradient reduction, "
      "o optimizer, . idle",
      9);
}

void write_trace(const Job& job, const ParallelPlan& plan, const TraceQuestion& question,
                 const Console& console) {
  // All ops of all ranks are easily a gigabyte.
  const std::int64_t rank = question.ops && question.rank < 0 ? 0 : question.rank;
  if (rank >= plan.pp) {
    throw Error(fmt::format("--rank {} is not in the plan; it has pipeline ranks 0 to {}", rank,
                            plan.pp - 1));
  }
  Trace trace = trace_step(*job.cost, plan, question.ops ? TraceGrain::op : TraceGrain::action);
  if (rank >= 0) std::erase_if(trace.events, [&](const TraceEvent& e) { return e.rank != rank; });
  write_output(question.output, to_chrome_json(trace), console);
  print(console.err, "{}: {} events; open it at ui.perfetto.dev\n", output_name(question.output),
        trace.events.size());
}

}  // namespace

Exit run_trace(const Args& args, const Console& console) {
  TraceQuestion question;
  CommandLine line("trace", "One step of a plan over time: a Perfetto trace, or drawn as text.",
                   "qplan trace plan.json -o trace.json   (open it at ui.perfetto.dev)");
  line.positional("PLAN", "plan file, as `qplan search -o` writes it", question.plan);
  add_cluster_options(line, question.choices, {.with_gpus = false, .with_hardware = true});
  line.group("Output");
  line.option({"-o,--output", "FILE", "trace file to write (Chrome's format)", ""},
              set_text(question.output));
  line.flag("--ops", "every op of one rank, instead of every microbatch's pass", question.ops);
  line.option({"--rank", "RANK", "the one pipeline rank to write", "all, or 0 with --ops"},
              set_whole(question.rank, 0, 1 << 20));
  line.flag("--text", "the pipeline drawn in the terminal", question.text);
  line.option({"--columns", "COUNT", "width of --text", "the terminal's, else 100"},
              set_whole(question.columns, 20, 10000));
  if (!line.parse(args, console.out)) return Exit::done;

  if (question.plan.empty()) {
    throw Error("trace needs a plan file; `qplan search ... -o plan.json` writes one");
  }
  if (question.output.empty() && !question.text) {
    throw Error("trace needs -o FILE to write the trace, or --text to draw it");
  }
  if (question.output.empty() && (question.ops || question.rank >= 0)) {
    throw Error("--ops and --rank choose what -o FILE gets; --text draws all pipeline ranks");
  }
  const PlanFile file = read_plan_file(question.plan);
  const auto job = make_job(merged_with_file(question.choices, file, question.plan));
  const auto broken = why_infeasible(job->model, file.plan, job->recipe(), job->limits());
  if (!broken.empty()) {
    print(console.err, "qplan: {}: the plan cannot run: {}\n", question.plan,
          broken.front().message);
    return Exit::nothing_fits;
  }
  if (!question.output.empty()) write_trace(*job, file.plan, question, console);
  if (question.text) {
    const int columns =
        question.columns > 0 ? static_cast<int>(question.columns) : console.terminal.columns;
    draw(trace_step(*job->cost, file.plan, TraceGrain::action), columns,
         beside_output(question.output, console));
  }
  return Exit::done;
}

}  // namespace qplan
