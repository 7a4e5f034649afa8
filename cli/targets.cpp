// `qplan targets`: what a run of a plan should measure, as thresholds for monitoring.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ostream>

#include "cli/answer.h"
#include "cli/asked_plan.h"
#include "cli/commands.h"
#include "cli/notes.h"
#include "cli/page.h"
#include "cli/print.h"
#include "cli/report.h"
#include "models/error.h"

namespace qplan {
namespace {

enum class TargetFormat : std::uint8_t { text, json, prometheus };

}  // namespace

template <>
struct Words<TargetFormat> {
  static constexpr std::string_view what = "format";
  static constexpr auto table = std::to_array<std::pair<TargetFormat, std::string_view>>(
      {{TargetFormat::text, "text"},
       {TargetFormat::json, "json"},
       {TargetFormat::prometheus, "prometheus"}});
};

namespace {

struct TargetsQuestion : PlanQuestion {
  std::string line, prefix = "training";
  TargetFormat format = TargetFormat::text;
  bool json = false;
  std::int64_t minutes = 10;
};

// A figure to watch. Its thresholds are the ends of the interval; none: that end says nothing.
struct Target {
  std::string name, unit;           // as in JSON; the unit is the last word of a metric's name
  std::optional<int> stage;         // of a pipeline; none: of the job
  double expected = 0;              // what is predicted
  std::optional<double> low, high;  // of the 80% interval
  std::string above, below;         // what it may mean; empty: nothing to say
};

std::vector<Target> targets_of(const Job& job, const Estimate& e) {
  const double step = e.step_time.value(), low = e.step_time_low.value(),
               high = e.step_time_high.value();
  const char* const slow =
      "a slow GPU or link, input that is late, or settings that are not the plan's";
  const char* const fast =
      "less work than the plan has, or a prediction that is too slow; "
      "`qplan fit` corrects it";
  std::vector<Target> targets{
      {"step_time", "seconds", {}, step, low, high, slow, fast},
      // Rates are what a step has over its time.
      {"tokens_per_second_per_gpu",
       "tokens_per_second",
       {},
       e.tokens_per_s_per_gpu,
       e.tokens_per_s_per_gpu * step / high,
       e.tokens_per_s_per_gpu * step / low,
       fast,
       slow},
      {"mfu", "ratio", {}, e.mfu, e.mfu * step / high, e.mfu * step / low, fast, slow}};
  const double spread = e.peak_high / largest(e.memory, &StageMemory::peak);  // it is relative
  for (std::size_t i = 0; i < e.memory.stages.size(); ++i) {
    const double peak = e.memory.stages[i].peak.value();
    targets.push_back({"memory_allocated", "bytes", static_cast<int>(i), peak, peak * (2 - spread),
                       peak * spread, "buffers that the plan does not know, or another layout",
                       "a smaller model, batch or length than the plan has"});
  }
  targets.push_back({"memory_used",
                     "bytes",
                     {},
                     e.memory.worst_stage().device.value(),
                     {},
                     job.hardware.gpu.usable_memory.value() *
                         std::min(1.0, e.capacity / job.hardware.gpu.usable_memory),
                     "the next longer sequence or fragment may not fit",
                     ""});
  return targets;
}

// ---- Prometheus ----

// The names of Prometheus' data model (prometheus.io/docs/concepts/data_model).
void refuse_no_metric(const std::string& option, const std::string& text) {
  const auto is_part = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == ':';
  };
  const bool digit_first = !text.empty() && text.front() >= '0' && text.front() <= '9';
  if (!text.empty() && !digit_first && std::all_of(text.begin(), text.end(), is_part)) return;
  throw Error(
      fmt::format("{} must be a name that metrics may begin with (letters, digits, _ and :, no "
                  "digit first), not '{}'",
                  option, shown(text)));
}

std::string metric_of(const Target& target, const std::string& prefix) {
  const bool has_unit = target.name.ends_with("per_gpu");
  return fmt::format("{}_{}{}{}{}", prefix, target.name, has_unit ? "" : "_",
                     has_unit ? "" : target.unit,
                     target.stage ? fmt::format("{{stage=\"{}\"}}", *target.stage) : "");
}

// "step_time" is "StepTime".
std::string camel(std::string_view name) {
  std::string text;
  bool upper = true;
  for (const char c : name) {
    if (c != '_') text += upper && c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    upper = c == '_';
  }
  return text;
}

void add_rule(std::string& text, const Target& target, const TargetsQuestion& question,
              bool above) {
  const std::optional<double>& bound = above ? target.high : target.low;
  const std::string& meaning = above ? target.above : target.below;
  if (!bound || meaning.empty()) return;
  const std::string stage = target.stage ? fmt::format("Stage{}", *target.stage) : "";
  text += fmt::format(
      "      - alert: Qplan{}{}{}\n"
      "        expr: {} {} {:.6g}\n"
      "        for: {}m\n"
      "        labels:\n"
      "          severity: warning\n"
      "        annotations:\n"
      "          summary: \"{} {}: predicted {:.4g}, threshold {:.4g} {}\"\n"
      "          description: \"It may be {}.\"\n",
      camel(target.name), stage, above ? "High" : "Low", metric_of(target, question.prefix),
      above ? '>' : '<', *bound, question.minutes, target.name, above ? "high" : "low",
      target.expected, *bound, target.unit, meaning);
}

std::string prometheus_text(const Job& job, const Answer& answer, const TargetsQuestion& question) {
  std::string text = fmt::format(
      "# By qplan, of {} on {} x {}: {}\n"
      "# Thresholds are the ends of the stated 80% interval. One run in ten lies above it by "
      "chance\n"
      "# of the prediction, not of the run; `qplan fit` narrows it with your own steps.\n"
      "# Metrics are those of your exporter: {}_step_time_seconds and so on.\n"
      "groups:\n  - name: qplan\n    rules:\n",
      job.model.name, job.gpus, job.hardware.name, line_of(job, answer.plan), question.prefix);
  for (const Target& target : targets_of(job, *answer.estimate)) {
    add_rule(text, target, question, true);
    add_rule(text, target, question, false);
  }
  return text;
}

// ---- text and JSON ----

std::string targets_text(const Job& job, const Answer& answer) {
  Table table({{"figure", "", Align::left},
               {"predicted", ""},
               {"low", ""},
               {"high", ""},
               {"unit", "", Align::left}});
  for (const Target& target : targets_of(job, *answer.estimate)) {
    const bool bytes = target.unit == "bytes";
    const auto shown_value = [&](double value) {
      return bytes ? fixed(in_gib(Bytes(value)), 2) : significant(value, 4);
    };
    const auto shown_end = [&](const std::optional<double>& value) {
      return value ? shown_value(*value) : std::string("-");
    };
    table.row({target.name + (target.stage ? fmt::format(" of stage {}", *target.stage) : ""),
               shown_value(target.expected), shown_end(target.low), shown_end(target.high),
               bytes ? "GiB" : target.unit});
  }
  return model_line(job) + wrapped("plan  " + line_of(job, answer.plan), page().text, 6) + '\n' +
         table.text(page().table) +
         wrapped(
             "low and high are the ends of the stated 80% interval; memory_used is what the "
             "driver shows of the fullest GPU, and high there what a plan may fill.",
             page().text);
}

Json targets_json(const Job& job, const Answer& answer) {
  const auto or_null = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json(nullptr);
  };
  Json list = Json::array();
  for (const Target& target : targets_of(job, *answer.estimate)) {
    list.push_back({{"name", target.name},
                    {"unit", target.unit},
                    {"stage", target.stage ? Json(*target.stage) : Json(nullptr)},
                    {"expected", target.expected},
                    {"low", or_null(target.low)},
                    {"high", or_null(target.high)},
                    {"above_means", target.above},
                    {"below_means", target.below.empty() ? Json(nullptr) : Json(target.below)}});
  }
  return {{"level", 0.8}, {"targets", std::move(list)}, {"prediction", report(job, answer)}};
}

}  // namespace

Exit run_targets(const Args& args, const Console& console) {
  TargetsQuestion question;
  CommandLine line("targets", "What a run of a plan should measure, as thresholds for monitoring.",
                   "qplan targets plan.json --format prometheus > rules.yaml");
  add_model_options(line, question.choices);
  add_job_words(line, question.words);
  add_cluster_options(line, question.choices);
  line.positional("PLAN", "plan file, or a line such as \"tp4 pp2 dp8 zero1 mbs2\"", question.line);
  line.group("Plan");
  add_plan_words(line, question.words);
  line.group("Output");
  line.option({"--format", "FORMAT", "text, json, or prometheus (alerting rules in YAML)", "text"},
              set_word(question.format));
  line.option(
      {"--metric-prefix", "NAME", "what your exporter's metrics begin with", question.prefix},
      [&question](const std::string& option, const std::string& text) {
        refuse_no_metric(option, text);
        question.prefix = text;
      });
  line.option(
      {"--for-min", "MINUTES", "how long a figure is beyond its threshold before an alert", "10"},
      set_whole(question.minutes, 0, 100000));
  line.flag("--json", "the same as --format json", question.json);
  if (!line.parse(args, console.out)) return Exit::done;
  if (question.json) question.format = TargetFormat::json;
  question.plan = question.line;
  const AskedPlan asked = asked_plan(question);
  const Answer answer = ask(*asked.job, asked.plan);
  if (!answer.feasible()) {
    print(console.err, "qplan: this plan cannot run: {}\n", answer.infeasible.front().message);
    return Exit::nothing_fits;
  }
  switch (question.format) {
    case TargetFormat::text:
      console.out << targets_text(*asked.job, answer);
      if (const std::string alone = update_alone_text(asked); !alone.empty()) {
        console.out << notes_text({alone});
      }
      break;
    case TargetFormat::json:
      console.out << answer_text("targets", targets_json(*asked.job, answer));
      break;
    case TargetFormat::prometheus:
      console.out << prometheus_text(*asked.job, answer, question);
      break;
  }
  return Exit::done;
}

}  // namespace qplan
