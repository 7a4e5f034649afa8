// `qplan validate`: what was predicted beside what was executed.

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <ostream>

#include "cli/commands.h"
#include "cli/report.h"
#include "cli/run.h"
#include "costmodel/replay.h"
#include "models/error.h"

namespace qplan {
namespace {

// Of one kind of work on the first rank of every pipeline stage, in one step.
struct KindTimes {
  std::int64_t predicted_ops = 0, executed_ops = 0;
  Seconds predicted, executed;
};
using Comparison = std::map<std::string, KindTimes>;

std::string kind_of(const TraceEvent& event) {
  return event.pipe ? "stage boundary" : event.name.substr(0, event.name.find(' '));
}

Comparison compare(const Trace& predicted, const Trace& executed, const RankGrid& grid) {
  Comparison kinds;
  for (const TraceEvent& e : predicted.events) {
    KindTimes& kind = kinds[kind_of(e)];
    ++kind.predicted_ops;
    kind.predicted += e.end - e.begin;
  }
  for (const TraceEvent& e : executed.events) {
    const auto at = grid.dense(e.rank);
    if (at.tp != 0 || at.cp != 0 || at.dp != 0) continue;
    KindTimes& kind = kinds[kind_of(e)];
    ++kind.executed_ops;
    kind.executed += e.end - e.begin;
  }
  // A prediction gives a boundary a duration, not an event each end.
  kinds.erase("stage boundary");
  return kinds;
}

// Of each pipeline rank: bytes allocated at once.
struct Memory {
  Bytes predicted, executed, arena;
};
std::vector<Memory> memory_of(const Estimate& estimate, const RunResult& result) {
  std::vector<Memory> ranks;
  for (std::size_t r = 0; r < result.live_peak.size(); ++r) {
    ranks.push_back({estimate.memory.stages[r].peak, result.live_peak[r], result.arena[r]});
  }
  return ranks;
}

bool agrees(const Comparison& kinds, const std::vector<Memory>& memory) {
  return std::all_of(kinds.begin(), kinds.end(),
                     [](const auto& kind) {
                       return kind.second.predicted_ops == kind.second.executed_ops;
                     }) &&
         std::all_of(memory.begin(), memory.end(),
                     [](const Memory& m) { return m.predicted.value() == m.executed.value(); });
}

void print_text(const Comparison& kinds, const std::vector<Memory>& memory, Seconds predicted,
                Seconds executed, std::ostream& out) {
  Table ops({{"kind of work", "", Align::left},
             {"ops", "predicted", Align::right},
             {"ops", "executed", Align::right},
             {"time", "predicted, ms", Align::right},
             {"time", "executed, ms", Align::right}});
  for (const auto& [name, kind] : kinds) {
    ops.row({name, std::to_string(kind.predicted_ops), std::to_string(kind.executed_ops),
             fixed(kind.predicted.value() * 1e3, 3), fixed(kind.executed.value() * 1e3, 3)});
  }
  out << ops.text() << '\n';
  Table bytes({{"pipeline rank", "", Align::right},
               {"allocated", "predicted, B", Align::right},
               {"allocated", "executed, B", Align::right},
               {"arena", "B", Align::right}});
  for (std::size_t r = 0; r < memory.size(); ++r) {
    bytes.row({std::to_string(r), fixed(memory[r].predicted.value(), 0),
               fixed(memory[r].executed.value(), 0), fixed(memory[r].arena.value(), 0)});
  }
  out << bytes.text() << '\n';
  fmt::print(out, "step time    {} predicted, {} executed\n", human_seconds(predicted),
             human_seconds(executed));
}

Json to_json(const Comparison& kinds, const std::vector<Memory>& memory, Seconds predicted,
             Seconds executed) {
  Json json{{"step_time_s", {{"predicted", predicted.value()}, {"executed", executed.value()}}},
            {"agrees", agrees(kinds, memory)},
            {"kinds", Json::array()},
            {"memory", Json::array()}};
  for (const auto& [name, kind] : kinds) {
    json["kinds"].push_back({{"kind", name},
                             {"predicted_ops", kind.predicted_ops},
                             {"executed_ops", kind.executed_ops},
                             {"predicted_s", kind.predicted.value()},
                             {"executed_s", kind.executed.value()}});
  }
  for (const Memory& m : memory) {
    json["memory"].push_back({{"predicted_gib", in_gib(m.predicted)},
                              {"executed_gib", in_gib(m.executed)},
                              {"arena_gib", in_gib(m.arena)}});
  }
  return json;
}

}  // namespace

Exit run_validate(const Args& args, const Console& console) {
  RunQuestion question;
  double max_error = INFINITY;
  CommandLine line("validate", "Runs a plan and lays what was predicted beside it.",
                   "qplan validate plan.json --steps 3");
  add_run_options(line, question);
  line.option({"--max-error", "SHARE", "largest error of the step time that is accepted", "any"},
              set_number(max_error, 0, 1e9));
  if (!line.parse(args, console.out)) return Exit::done;
  RunJob run = make_run_job(question);
  run.options.keep_trace = true;
  const RunResult result = execute(run);
  const Estimate estimate = *ask(*run.job, run.plan).estimate;
  const RankGrid grid(run.plan, run.job->cost->facts().nvlink_domain);
  const Comparison kinds =
      compare(trace_step(*run.job->cost, run.plan, TraceGrain::op), result.trace, grid);
  const std::vector<Memory> memory = memory_of(estimate, result);
  const Seconds executed = result.step_time.back();
  if (question.json) {
    console.out << json_text(to_json(kinds, memory, estimate.step_time, executed));
  } else {
    console.out << model_line(*run.job) << wrapped("plan         " + to_string(run.plan), 116, 13)
                << '\n';
    print_text(kinds, memory, estimate.step_time, executed, console.out);
    console.out << notes_text(run.notes);
  }
  const double error = std::abs(estimate.step_time / executed - 1);
  return agrees(kinds, memory) && error <= max_error ? Exit::done : Exit::nothing_fits;
}

}  // namespace qplan
