// `qplan fit`: one's own runs correct the machine's profile, and the ranking is made anew.

#include "planner/runs/fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <ostream>

#include "cli/answer.h"
#include "cli/asked_plan.h"
#include "cli/commands.h"
#include "cli/files_plan.h"
#include "cli/kernel_comparison.h"
#include "cli/notes.h"
#include "cli/output.h"
#include "cli/page.h"
#include "cli/print.h"
#include "cli/report.h"
#include "costmodel/profiles/layers.h"
#include "models/error.h"
#include "planner/runs/measured_runs.h"
#include "planner/runs/predict_runs.h"
#include "planner/runs/run_log.h"

namespace qplan {
namespace {

struct FitQuestion : PlanQuestion {
  std::vector<std::string> logs, tables;
  std::vector<double> measured;  // seconds a step
  std::string output, rows;
  std::int64_t top = 3, trace_steps = 0;  // 0: the trace marks them
  bool json = false, leave_one_out = false;
};

// A plan before and after, of the job that was measured.
struct Reranked {
  std::string plan;
  double step_s = 0;
};

struct FitAnswer {
  std::string base;  // the profile that was corrected
  ProfileFit fit;
  std::vector<KernelComparison> traces;
  std::vector<FittedRun> left_out;  // each by the fit of the others
  std::vector<Reranked> before, after;
  std::vector<std::string> notes;
};

// "1.52s", "1520ms", "1.52".
double read_seconds(const std::string& option, const std::string& text) {
  double unit = 1;
  std::string number = text;
  if (number.ends_with("ms")) {
    unit = 1e-3;
    number.resize(number.size() - 2);
  } else if (number.ends_with('s')) {
    number.pop_back();
  }
  double value = 0;
  set_number(value, 1e-6, 1e6)(option, number);
  return value * unit;
}

// A profile is found from any folder.
std::string base_of(const std::string& name) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(name, ignored)) return name;
  return std::filesystem::absolute(name).lexically_normal().string();
}

// What the corrected profile extends stays as it is: written over, it would extend itself.
void refuse_output_below(const std::string& output, const std::string& base) {
  if (output.empty() || output == "-") return;
  for (const std::string& file : files_of_profile(base)) {
    std::error_code ignored;
    if (!std::filesystem::equivalent(output, file, ignored)) continue;
    throw Error(
        fmt::format("-o {} would write over the profile that is corrected, which the corrected one "
                    "extends; name another file",
                    output));
  }
}

FitRun run_of(std::string name, double seconds, const std::shared_ptr<AskedPlan>& asked) {
  const auto predict = [asked](const HardwareProfile& machine) -> std::optional<Estimate> {
    JobChoices choices = asked->job->choices;
    choices.hardware_profile = machine.source;
    const auto job = make_job(choices, asked->job->gpus);
    return ask(*job, asked->plan).estimate;
  };
  return {std::move(name), Seconds(seconds), predict};
}

FitRun run_of_row(const MeasuredRun& row) {
  const auto predict = [row](const HardwareProfile& machine) -> std::optional<Estimate> {
    const auto given = [&machine](const std::string&) { return machine; };
    return predict_runs({row}, 1, given).front().estimate;
  };
  return {row.id, *row.step_time, predict};
}

// Rows whose id begins with `rows`, all of one machine. Returns why the first of those that cannot
// be predicted cannot; empty: all can, or have no step time.
std::string add_rows(const FitQuestion& question, std::vector<FitRun>& runs, std::string& base) {
  std::string why;
  for (const std::string& file : question.tables) {
    for (const MeasuredRun& row : read_measured_runs(read_csv_file(file))) {
      if (!row.id.starts_with(question.rows) || !row.step_time) continue;
      if (!row.inputs) {
        if (why.empty()) why = fmt::format("{}: {}", row.id, row.unpriced);
        continue;
      }
      const std::string own = base_of(row.inputs->hardware);
      if (!base.empty() && own != base) {
        throw Error(
            fmt::format("runs on {} and on {} correct no profile together; choose rows of one "
                        "machine with --rows",
                        base, own));
      }
      base = own;
      runs.push_back(run_of_row(row));
    }
  }
  return why;
}

std::string signed_percent(double share) {
  return fmt::format("{:+.1f}", 100 * share);
}

// A long run's log has hundreds of thousands of lines, a trace as many kernels.
constexpr std::size_t kMostBytes = std::size_t{512} << 20U;

double seconds_of_log(const std::string& path, const std::string& text, const AskedPlan& asked) {
  const std::int64_t batch = asked.plan.global_batch_size, length = asked.plan.seq_len;
  std::vector<double> seconds;
  LoggedMean mean;  // where it tells of no step
  LoggedSizes sizes;
  LoggedSteps steps;
  for (const LogLine& line : read_log(text)) {
    sizes.read(line);
    // While a batch grows to what it is to be, steps are another plan's.
    if (!sizes.other_than(batch, length, asked.job->gpus).empty()) continue;
    mean.read(line);
    const auto step = steps.read(line);
    if (!step) continue;
    if (step->replaces) seconds.clear();
    seconds.push_back(*step_seconds(line, batch, length, asked.job->gpus));
  }
  if (seconds.empty() && mean.seconds(batch)) return *mean.seconds(batch);
  const std::string other = sizes.other_than(batch, length, asked.job->gpus);
  if (!other.empty()) throw Error(other_plan_text(path, other));
  if (const auto typical = typical_step_seconds(std::move(seconds))) return *typical;
  throw Error(no_step_text(path));
}

std::vector<Reranked> ranked(const FitQuestion& question, const AskedPlan& asked,
                             const Json& profile) {
  JobChoices choices = asked.job->choices;
  choices.hardware_profile = profile;
  const auto job = make_job(choices, asked.job->gpus);
  SearchOptions options;
  options.top = static_cast<int>(question.top);
  std::vector<Reranked> plans;
  for (const RankedPlan& plan :
       search_offered(*job, space_of_job(asked.plan, job->gpus), options).plans) {
    plans.push_back({line_of(*job, plan.plan), plan.step_time.value()});
  }
  return plans;
}

// The job whose plan was measured, which corrects the same profile as the rows.
std::shared_ptr<AskedPlan> asked_job(const FitQuestion& question, std::string& base) {
  auto asked = std::make_shared<AskedPlan>(asked_plan(question));
  if (!asked->job->choices.hardware_profile.is_null()) {
    throw Error(
        "the plan file has a profile of its own; name its file as --hardware, so that the "
        "corrected one can extend it");
  }
  const std::string own = base_of(asked->job->choices.hardware.value_or("h100-sxm"));
  if (!base.empty() && own != base) {
    throw Error(fmt::format("the rows are of {}, and --hardware is {}", base, own));
  }
  base = own;
  const Answer can_run = ask(*asked->job, asked->plan);
  if (!can_run.estimate) {
    throw Error("the plan that was measured cannot run: " + can_run.infeasible.front().message);
  }
  return asked;
}

// Logs and figures are runs of the plan; traces are compared with it kernel by kernel.
void add_measured(const FitQuestion& question, const std::shared_ptr<AskedPlan>& asked,
                  std::vector<FitRun>& runs, std::vector<KernelComparison>& traces) {
  for (const std::string& log : question.logs) {
    const std::string text = read_text_file(log, {.bytes = kMostBytes});
    if (text.starts_with("\x1f\x8b")) {
      throw Error(fmt::format("{} is compressed; unpack it with gunzip", log));
    }
    if (is_kernel_trace(text)) {
      traces.push_back(
          compare_kernels(log, read_kernel_trace(text, log, question.trace_steps), *asked));
    } else {
      runs.push_back(run_of(log, seconds_of_log(log, text, *asked), asked));
    }
  }
  for (const double seconds : question.measured) {
    runs.push_back(
        run_of(fmt::format("--measured {}", human_seconds(Seconds(seconds))), seconds, asked));
  }
}

[[noreturn]] void refuse_no_run(const FitQuestion& question, const std::string& unpriced_row) {
  if (question.tables.empty()) {
    throw Error("fit needs a run: a log, a trace, --measured 1.52s, or --runs FILE.csv");
  }
  throw Error(fmt::format(
      "no row of {} {}has what is needed of a run: its step time, and a job that can be "
      "predicted{}",
      fmt::join(question.tables, ", "),
      question.rows.empty() ? "" : fmt::format("whose id begins with '{}' ", question.rows),
      unpriced_row.empty() ? "" : " (" + unpriced_row + ")"));
}

std::vector<std::string> notes_of_fit(const ProfileFit& fit, std::size_t runs, bool traced) {
  std::vector<std::string> notes;
  if (traced && !fit.traces_count) {
    notes.emplace_back(
        "what the trace says of products and attention would make the steps fit worse, and does "
        "not count: is it of the same run?");
  }
  const std::size_t unpriced = runs - fit.runs.size();
  if (unpriced > 0) {
    notes.push_back(
        fmt::format("{} of {} runs cannot be predicted and do not count", unpriced, runs));
  }
  for (const FittedRun& run : fit.runs) {
    if (!run.stays_outside()) continue;
    notes.push_back(
        fmt::format("{} stays far outside the stated interval ({}% corrected): the interval is not "
                    "narrowed; is it a run of this plan?",
                    run.name, signed_percent(run.error_after())));
  }
  return notes;
}

// Each run by the fit of the others.
std::vector<FittedRun> left_out_in_turn(const std::string& base, const std::vector<FitRun>& runs,
                                        const std::vector<TracedCompute>& traced) {
  std::vector<FittedRun> left_out;
  for (std::size_t i = 0; i < runs.size() && runs.size() > 1; ++i) {
    std::vector<FitRun> others = runs;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    const auto before = runs[i].predict(load_hardware(base));
    if (!before) continue;
    const ProfileFit of_others = fit_profile(base, others, traced);
    const auto after = runs[i].predict(corrected_machine(base, of_others.factors));
    left_out.push_back({runs[i].name, runs[i].measured.value(), before->step_time.value(),
                        after->step_time.value(), 0, 0});
  }
  return left_out;
}

FitAnswer fit(const FitQuestion& question) {
  FitAnswer answer;
  std::vector<FitRun> runs;
  const std::string unpriced_row = add_rows(question, runs, answer.base);
  std::shared_ptr<AskedPlan> asked;
  if (!question.logs.empty() || !question.measured.empty()) {
    asked = asked_job(question, answer.base);
    add_measured(question, asked, runs, answer.traces);
  }
  // Recorded steps are slower than others: they count where no other was measured.
  if (runs.empty()) {
    for (const KernelComparison& trace : answer.traces) {
      runs.push_back(run_of(trace.name, trace.recorded.mean.step.value(), asked));
    }
  }
  if (runs.empty()) refuse_no_run(question, unpriced_row);
  refuse_output_below(question.output, answer.base);
  std::vector<TracedCompute> traced;
  for (const KernelComparison& trace : answer.traces) {
    traced.push_back({trace.name, trace.compute_ratio()});
  }
  answer.fit = fit_profile(answer.base, runs, traced);
  answer.notes = notes_of_fit(answer.fit, runs.size(), !traced.empty());
  if (asked) {
    const std::string alone = update_alone_text(*asked);
    if (!alone.empty()) answer.notes.push_back(alone);
  }
  if (question.leave_one_out) answer.left_out = left_out_in_turn(answer.base, runs, traced);
  if (asked && question.top > 0) {
    answer.before = ranked(question, *asked, load_hardware(answer.base).source);
    answer.after =
        ranked(question, *asked,
               corrected_machine(answer.base, answer.fit.factors, answer.fit.narrowed).source);
  }
  return answer;
}

Json profile_of(const FitAnswer& answer) {
  Json profile = answer.fit.overlay;
  profile["extends"] = answer.base;
  profile["description"] = fmt::format(
      "{} as {} run{} of one's own correct{} it (qplan fit)", answer.base, answer.fit.runs.size(),
      answer.fit.runs.size() == 1 ? "" : "s", answer.fit.runs.size() == 1 ? "s" : "");
  return profile;
}

// ---- text ----

double median_error(const std::vector<FittedRun>& runs, bool after) {
  std::vector<double> errors;
  for (const FittedRun& run : runs) {
    errors.push_back(std::abs(after ? run.error_after() : run.error_before()));
  }
  std::sort(errors.begin(), errors.end());
  const std::size_t half = errors.size() / 2;
  return errors.size() % 2 == 1 ? errors[half] : (errors[half - 1] + errors[half]) / 2;
}

std::string runs_text(const std::vector<FittedRun>& runs) {
  Table table({{"run", "", Align::left},
               {"measured", "s"},
               {"predicted", "s"},
               {"error", "%"},
               {"corrected", "s"},
               {"error", "%"}});
  for (const FittedRun& run : runs) {
    table.row({run.name, significant(run.measured_s, 4), significant(run.before_s, 4),
               signed_percent(run.error_before()), significant(run.after_s, 4),
               signed_percent(run.error_after())});
  }
  return table.text(page().table) + fmt::format("median error {}% before, {}% after\n",
                                                percent(median_error(runs, false)),
                                                percent(median_error(runs, true)));
}

std::string factors_text(const ProfileFit& fit) {
  Table table({{"factor", "", Align::left},
               {"of the profile's", "", Align::left},
               {"times", ""},
               {"give or take", "%"},
               {"before", "%"}});
  for (const FitFactor& factor : fit_factors()) {
    table.row({std::string(factor.key), std::string(factor.label),
               fmt::format("{:.3f}", fit.factors.*factor.value), percent(fit.spread.*factor.value),
               percent(fit.spread_before.*factor.value)});
  }
  return table.text(page().table);
}

void print_text(const FitAnswer& answer, const FitQuestion& question, std::ostream& out) {
  for (const KernelComparison& trace : answer.traces) out << kernels_text(trace) << '\n';
  out << runs_text(answer.fit.runs) << notes_text(answer.notes) << '\n'
      << factors_text(answer.fit)
      << wrapped(fmt::format("The interval of a further run like these is {} times as wide as "
                             "before. Factors are held to 1 as firmly as the stated interval is "
                             "narrow: one run moves them part of the way.",
                             significant(answer.fit.narrowed)),
                 page().text);
  if (!answer.left_out.empty()) {
    out << "\nEach run by the fit of the others:\n" << runs_text(answer.left_out);
  }
  if (!answer.before.empty()) {
    out << "\nBest plans before:\n";
    for (const Reranked& r : answer.before) {
      out << wrapped(fmt::format("  {} s  {}", significant(r.step_s, 4), r.plan), page().text, 11);
    }
    out << "and after:\n";
    for (const Reranked& r : answer.after) {
      out << wrapped(fmt::format("  {} s  {}", significant(r.step_s, 4), r.plan), page().text, 11);
    }
  }
  if (!question.output.empty()) {
    print(out, "\n{}: for --hardware; it extends {}\n", output_name(question.output), answer.base);
  }
}

// ---- JSON ----

Json runs_json(const std::vector<FittedRun>& runs) {
  Json list = Json::array();
  for (const FittedRun& run : runs) {
    list.push_back({{"name", run.name},
                    {"measured_s", run.measured_s},
                    {"predicted_s", run.before_s},
                    {"corrected_s", run.after_s},
                    {"error_before", run.error_before()},
                    {"error_after", run.error_after()}});
  }
  return list;
}

Json plans_json(const std::vector<Reranked>& plans) {
  Json list = Json::array();
  for (const Reranked& r : plans) list.push_back({{"short", r.plan}, {"step_time_s", r.step_s}});
  return list;
}

Json to_json(const FitAnswer& answer) {
  Json factors = Json::array();
  for (const FitFactor& factor : fit_factors()) {
    factors.push_back({{"name", factor.key},
                       {"factor", answer.fit.factors.*factor.value},
                       {"sigma", answer.fit.spread.*factor.value},
                       {"sigma_before", answer.fit.spread_before.*factor.value}});
  }
  Json traces = Json::array();
  for (const KernelComparison& trace : answer.traces) traces.push_back(kernels_json(trace));
  return {{"hardware", answer.base},
          {"factors", std::move(factors)},
          {"traces", std::move(traces)},
          {"narrowed", answer.fit.narrowed},
          {"runs", runs_json(answer.fit.runs)},
          {"left_out", runs_json(answer.left_out)},
          {"notes", answer.notes},
          {"plans_before", plans_json(answer.before)},
          {"plans_after", plans_json(answer.after)},
          {"profile", profile_of(answer)}};
}

}  // namespace

Exit run_fit(const Args& args, const Console& console) {
  FitQuestion question;
  CommandLine line("fit", "One's own runs correct the machine's profile, and the ranking with it.",
                   "qplan fit train.log --plan plan.json -o ours.json\n"
                   "         qplan fit --measured 58.5s --plan \"tp4 pp4 mbs1\" --model llama3-70b "
                   "--gpus 64 -o ours.json\n"
                   "         qplan fit train.log rank0.pt.trace.json --plan plan.json");
  line.positionals(
      "LOG",
      "logs of runs of the plan: Megatron's, Megatron-Bridge's, NeMo's, torchtitan's, "
      "DeepSpeed's, a Trainer's JSON, MLPerf's; or a trace of one GPU's kernels: PyTorch's "
      "profiler's JSON, or `nsys stats --report cuda_gpu_trace --format csv`",
      question.logs);
  line.group("Runs");
  line.repeatable({"--measured", "SECONDS", "a step of the plan, 1.52s or 1520ms", ""},
                  [&question](const std::string& option, const std::string& text) {
                    question.measured.push_back(read_seconds(option, text));
                  });
  line.repeatable({"--runs", "FILE", "measured runs in a CSV, as `qplan accuracy` reads them", ""},
                  [&question](const std::string&, const std::string& text) {
                    question.tables.push_back(text);
                  });
  line.option({"--trace-steps", "COUNT", "optimizer steps of a trace that marks none", ""},
              set_whole(question.trace_steps, 1, 1'000'000));
  line.option({"--rows", "ID", "of --runs the rows whose id begins so", "all"},
              set_text(question.rows));
  line.flag("--leave-one-out", "also each run by the fit of the others", question.leave_one_out);
  add_plan_question(line, question);
  line.group("Output");
  line.option({"--top", "COUNT", "plans to rank anew (0: none)", "3"},
              set_whole(question.top, 0, 100));
  line.flag("--json", "the same as JSON", question.json);
  line.option({"-o,--output", "FILE", "file for the corrected profile, for --hardware", ""},
              set_text(question.output));
  if (!line.parse(args, console.out)) return Exit::done;
  refuse_one_stream(question.output, question.json);
  const FitAnswer answer = fit(question);
  if (!question.output.empty()) {
    write_output(question.output, answer_text("profile", profile_of(answer)), console);
  }
  if (question.json) {
    console.out << answer_text("fit", to_json(answer));
  } else {
    print_text(answer, question, beside_output(question.output, console).out);
  }
  return Exit::done;
}

}  // namespace qplan
