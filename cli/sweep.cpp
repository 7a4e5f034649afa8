// `qplan sweep`: a search per point, and what a training run of the best plan takes there.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <sstream>

#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/explain.h"
#include "cli/notes.h"
#include "cli/output.h"
#include "cli/page.h"
#include "cli/plan_words.h"
#include "cli/print.h"
#include "cli/progress.h"
#include "cli/reliability_options.h"
#include "cli/report.h"
#include "cli/stopwatch.h"
#include "models/error.h"
#include "planner/search/goodput.h"

namespace qplan {
namespace {

struct SweepQuestion {
  JobChoices choices;
  PlanWords words;
  SearchSpace space;
  std::vector<std::int64_t> gpus, seq_lens, batches;
  std::vector<std::string> hardware;
  RunFacts run;
  double restart_min = run.reliability.restart.value() / 60;
  StorageRates storage;
  std::int64_t threads = 0;
  bool json = false, timing = false;
  std::string output;
  [[nodiscard]] bool scales() const { return gpus.size() > 1; }
};

struct Point {
  std::unique_ptr<Job> job;
  SearchSpace space;
  JobDefaults defaults;
  SearchResult result;
  std::optional<Answer> best;
  Bytes checkpoint;  // of the best plan
  RunCost cost;
};

Point look(const SweepQuestion& question, const std::string& hardware, std::int64_t gpus,
           std::int64_t seq_len, std::int64_t batch, std::function<void(double)> progress) {
  Point point;
  JobChoices choices = question.choices;
  if (!hardware.empty()) choices.hardware = hardware;
  choices.gpus = gpus;
  point.job = make_job(choices);
  Job& job = *point.job;
  PlanWords words = question.words;
  if (seq_len > 0) words["seq_len"] = fmt::format("{}", seq_len);
  if (batch > 0) words["global_batch_size"] = fmt::format("{}", batch);
  point.space = question.space;
  point.defaults = set_job_words(point.space, words, job.model, job.recipe(), gpus, question.gpus);
  SearchOptions options;
  options.top = 1;
  options.threads = static_cast<int>(question.threads);
  options.progress = std::move(progress);
  point.result = search_offered(job, point.space, options);
  if (point.result.plans.empty()) return point;
  point.best = ask(job, point.result.plans.front().plan);
  RunFacts run = question.run;
  run.price_per_gpu_hour = job.price_per_gpu_hour;
  run.reliability.restart = Seconds(60 * question.restart_min);
  run.reliability.storage = question.storage.storage();
  point.checkpoint = checkpoint_bytes(job.model, job.recipe(), point.best->plan);
  point.cost =
      cost_of_run(run, point.checkpoint, job.hardware, gpus, point.best->estimate->tokens_per_s);
  return point;
}

std::vector<Point> all_points(const SweepQuestion& question, const Console& console) {
  // An axis that nobody asked for has one point: what the words or the defaults say.
  const auto axis = [](auto values, const auto& none) {
    if (values.empty()) values.push_back(none);
    return values;
  };
  std::vector<Point> points;
  const auto machines = axis(question.hardware, std::string());
  const auto seq_lens = axis(question.seq_lens, std::int64_t{0});
  const auto batches = axis(question.batches, std::int64_t{0});
  const auto all = static_cast<double>(machines.size() * seq_lens.size() * batches.size() *
                                       question.gpus.size());
  for (const std::string& hardware : machines) {
    for (const std::int64_t seq_len : seq_lens) {
      for (const std::int64_t batch : batches) {
        for (const std::int64_t gpus : question.gpus) {
          const auto done = static_cast<double>(points.size());
          const auto progress = progress_of(console, done / all, (done + 1) / all);
          points.push_back(look(question, hardware, gpus, seq_len, batch, progress));
        }
      }
    }
  }
  end_progress(console);
  return points;
}

// Points that differ in their GPUs' number alone. Two profiles may have one name.
bool same_curve(const Point& a, const Point& b) {
  const ParallelPlan &of_a = a.space.job, &of_b = b.space.job;
  return a.job->choices.hardware == b.job->choices.hardware && of_a.seq_len == of_b.seq_len &&
         of_a.global_batch_size == of_b.global_batch_size;
}

bool is_priced(const Point& point) {
  return point.job->price_per_gpu_hour > 0;
}

// Throughput a GPU against the first world size that fits: 1 is perfect scaling.
double scaling(const std::vector<Point>& points, const Point& point) {
  for (const Point& first : points) {
    if (!first.best || !same_curve(first, point)) continue;
    return point.best->estimate->tokens_per_s_per_gpu / first.best->estimate->tokens_per_s_per_gpu;
  }
  return 0;
}

// ---- text ----

// A column, and what stands in it for a point.
struct PointField {
  Table::Column column;
  std::function<std::string(const Point&)> cell;
};

bool is_marked(const Point& point) {
  return point.best && rests_on_assumptions(*point.best->estimate);
}

// What is said of the best plan; cost only where there is a price.
std::vector<PointField> fields_of(const SweepQuestion& question, const std::vector<Point>& points) {
  std::vector<PointField> fields;
  const auto add = [&](const char* heading, const char* unit, auto value, int digits) {
    fields.push_back({{heading, unit, Align::right}, [value, digits](const Point& point) {
                        return significant(value(point), digits);
                      }});
  };
  const auto estimate = [](const Point& p) -> const Estimate& { return *p.best->estimate; };
  const bool marks = std::any_of(points.begin(), points.end(), is_marked);
  const auto add_marked = [&](const char* heading, const std::string& unit, auto value,
                              int digits) {
    fields.push_back({{heading, unit, Align::right}, [=](const Point& point) {
                        const std::string mark = !marks ? "" : is_marked(point) ? "*" : " ";
                        return significant(value(point), digits) + mark;
                      }});
  };
  add_marked(
      "step", "s", [=](const Point& p) { return estimate(p).step_time.value(); }, 4);
  add(
      "tok/s/GPU", "", [=](const Point& p) { return estimate(p).tokens_per_s_per_gpu; }, 4);
  // GPUs of one sweep may state different peaks; over bf16's all compare.
  std::vector<std::string> peaks;
  for (const Point& point : points) {
    if (!point.best) continue;
    std::string peak(to_word(peak_of(*point.job, *point.best).format));
    if (std::find(peaks.begin(), peaks.end(), peak) == peaks.end()) peaks.push_back(peak);
  }
  const bool is_bf16 = peaks.empty() || (peaks.size() == 1 && peaks.front() == "bf16");
  add_marked(
      "MFU", is_bf16 ? "%" : fmt::format("% of {}", fmt::join(peaks, " or ")),
      [=](const Point& p) { return 100 * estimate(p).mfu; }, 3);
  if (!is_bf16) {
    add_marked(
        "MFU", "% of bf16", [=](const Point& p) { return 100 * peak_of(*p.job, *p.best).mfu_bf16; },
        3);
  }
  if (question.scales()) {
    add(
        "scaling", "%", [&points](const Point& p) { return 100 * scaling(points, p); }, 3);
  }
  add(
      "peak", "GiB",
      [=](const Point& p) { return in_gib(estimate(p).memory.worst_stage().device); }, 3);
  add(
      "goodput", "%", [](const Point& p) { return 100 * p.cost.goodput.share; }, 3);
  add(
      "run", "days", [](const Point& p) { return p.cost.wall.value() / 86400; }, 3);
  add(
      "energy", "MWh", [](const Point& p) { return p.cost.kwh / 1000; }, 3);
  add(
      "", "J/token", [](const Point& p) { return p.cost.joule_per_token; }, 3);
  if (std::any_of(points.begin(), points.end(), is_priced)) {
    fields.push_back({{"cost", "k USD", Align::right}, [](const Point& p) {
                        return is_priced(p) ? significant(p.cost.usd / 1000, 3) : "-";
                      }});
  }
  return fields;
}

// Where on the swept axes a point lies.
std::vector<PointField> axes_of(const SweepQuestion& question) {
  std::vector<PointField> axes;
  if (question.hardware.size() > 1) {
    axes.push_back(
        {{"hardware", "", Align::left}, [](const Point& p) { return p.job->hardware.name; }});
  }
  if (question.seq_lens.size() > 1) {
    axes.push_back({{"seq", "tokens", Align::right},
                    [](const Point& p) { return fmt::format("{}", p.space.job.seq_len); }});
  }
  if (question.batches.size() > 1) {
    axes.push_back({{"batch", "seqs", Align::right}, [](const Point& p) {
                      return fmt::format("{}", p.space.job.global_batch_size);
                    }});
  }
  axes.push_back(
      {{"GPUs", "", Align::right}, [](const Point& p) { return fmt::format("{}", p.space.gpus); }});
  return axes;
}

std::string table_text(const SweepQuestion& question, const std::vector<Point>& points) {
  const std::vector<PointField> axes = axes_of(question), fields = fields_of(question, points);
  std::vector<Table::Column> columns;
  for (const PointField& field : axes) columns.push_back(field.column);
  for (const PointField& field : fields) columns.push_back(field.column);
  columns.push_back({"", "", Align::left});
  Table table(columns);

  std::vector<Answer> answers;
  for (const Point& point : points) {
    if (point.best) answers.push_back(*point.best);
  }
  const CommonWords words = split_common_words(answers);
  auto own = words.own.begin();
  for (const Point& point : points) {
    std::vector<std::string> cells;
    for (const PointField& field : axes) cells.push_back(field.cell(point));
    for (const PointField& field : fields) cells.push_back(point.best ? field.cell(point) : "-");
    if (!point.best) {
      cells.emplace_back(point.result.out_of_memory > 0 ? "does not fit" : "no plan");
    }
    table.row(cells);
    if (!point.best) continue;
    std::string note = wrapped("      " + *own++, page().text, 6);
    note.pop_back();
    table.note(note);
  }
  const std::string common =
      words.common.empty() ? "" : wrapped("all with: " + words.common, page().text, 10);
  const bool marks = std::any_of(points.begin(), points.end(), is_marked);
  return table.text(page().table) + (marks ? wrapped(kAssumedMark, page().text, 2) : "") + common;
}

// How what nobody said was chosen, once for each length.
std::string defaults_of_all(const std::vector<Point>& points) {
  std::string text;
  for (const Point& point : points) {
    const std::string own = defaults_text(point.defaults);
    if (text.find(own) == std::string::npos) text += own;
  }
  return text;
}

// Each note once, in the order of the points.
std::vector<std::string> notes_of_all(const std::vector<Point>& points) {
  std::vector<std::string> notes;
  for (const Point& point : points) {
    for (std::string& note : search_notes(point.job->model, point.space, point.defaults)) {
      if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
    }
  }
  return notes;
}

// " of 398 GiB"; of several sizes the least and the most; nothing where no plan fits.
std::string checkpoints_text(const std::vector<Point>& points) {
  std::vector<Bytes> sizes;
  for (const Point& point : points) {
    if (point.best) sizes.push_back(point.checkpoint);
  }
  if (sizes.empty()) return "";
  const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
  if (*least == *most) return " of " + human_bytes(*least);
  return fmt::format(" of {} to {}", human_bytes(*least), human_bytes(*most));
}

std::int64_t most_nodes(const std::vector<Point>& points) {
  std::int64_t most = 1;
  for (const Point& point : points) {
    most = std::max(most, nodes_for(point.job->hardware, point.job->gpus));
  }
  return most;
}

void print_text(const SweepQuestion& question, const std::vector<Point>& points,
                std::ostream& out) {
  const ParameterCount count = count_parameters(points.front().job->model);
  print(out, "{}, {} parameters, by {}; a run of {} tokens\n\n", points.front().job->model.name,
        human_count(static_cast<double>(count.total())), to_word(points.front().job->framework),
        human_count(question.run.tokens));
  out << table_text(question, points) << defaults_of_all(points) << notes_text(notes_of_all(points))
      << '\n';
  const Reliability& facts = question.run.reliability;
  out << wrapped(
      fmt::format(
          "Run, energy and cost include goodput ({} failures per 1000 node-days, {} min to "
          "come back, checkpoints{} at {} as often as is best) and "
          "stragglers (10% on 512 nodes, assumed); energy is the nodes' full power times a PUE of "
          "{}.",
          significant(facts.failures_per_1000_node_days), significant(question.restart_min),
          checkpoints_text(points), rate_text(question.storage, most_nodes(points)),
          significant(question.run.pue)),
      page().text);
  const bool endless = std::any_of(points.begin(), points.end(), [](const Point& p) {
    return p.best && p.cost.goodput.share == 0;
  });
  if (endless) {
    out << wrapped("A run of goodput 0 never ends: it fails faster than it makes progress.",
                   page().text);
  }
}

// ---- JSON ----

Json run_json(const SweepQuestion& question, const Point& point) {
  const RunCost& cost = point.cost;
  const Goodput& good = cost.goodput;
  return {{"tokens", question.run.tokens},
          {"days", cost.wall.value() / 86400},
          {"gpu_hours", cost.gpu_hours},
          {"cost_usd", is_priced(point) ? Json(cost.usd) : Json(nullptr)},
          {"energy_kwh", cost.kwh},
          {"joule_per_token", cost.joule_per_token},
          {"goodput", good.share},
          {"straggler_slowdown", cost.slowdown},
          {"mean_time_between_failures_s", good.mean_time_between_failures.value()},
          {"checkpoint_save_s", good.save_time.value()},
          {"checkpoint_interval_s", good.save_interval.value()}};
}

Json point_json(const SweepQuestion& question, const std::vector<Point>& points,
                const Point& point) {
  Json object;
  if (point.best) {
    object = report(*point.job, *point.best);
    if (question.scales()) object["scaling"] = scaling(points, point);
    object["run"] = run_json(question, point);
  } else {
    object = nothing_report(*point.job);
    if (question.scales()) object["scaling"] = nullptr;
    object["run"] = nullptr;
  }
  Json& notes = object["notes"];
  for (const std::string& note : search_notes(point.job->model, point.space, point.defaults)) {
    if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
  }
  object["global_batch_size"] = point.space.job.global_batch_size;
  object["seq_len"] = point.space.job.seq_len;
  object["defaults"] = defaults_json(point.defaults);
  object["considered"] = point.result.considered;
  object["out_of_memory"] = point.result.out_of_memory;
  return object;
}

Json to_json(const SweepQuestion& question, const std::vector<Point>& points) {
  Json list = Json::array();
  for (const Point& point : points) list.push_back(point_json(question, points, point));
  return {{"points", std::move(list)}};
}

// ---- options ----

SetOption set_axis(std::vector<std::int64_t>& axis, std::int64_t low, std::int64_t high) {
  return [&axis, low, high](const std::string& option, const std::string& text) {
    axis = read_numbers(option, text, low, high, RangeStep::doubling);
  };
}

void add_run_options(CommandLine& line, SweepQuestion& question) {
  Reliability& facts = question.run.reliability;
  line.group("Run");
  line.option({"--tokens", "COUNT", "tokens of the training run", "1T"},
              set_count(question.run.tokens, 1, 1e18));
  add_failure_rate(line, facts);
  line.option({"--restart-min", "MINUTES", "time from a failure to the next step (assumed)",
               significant(question.restart_min)},
              set_number(question.restart_min, 0, 1e5));
  add_storage_rates(line, question.storage);
  line.option({"--pue", "RATIO", "power of the building over power of the nodes", "1"},
              set_number(question.run.pue, 1, 10));
}

void add_options(CommandLine& line, SweepQuestion& question) {
  constexpr std::int64_t kMost = 1 << 30;
  add_model_options(line, question.choices);
  line.option({"--seq-len", "TOKENS,...", "tokens of a sequence: 4096, 4096..65536, 8192,131072",
               kDefaultLength},
              set_axis(question.seq_lens, 1, kMost));
  line.option({"--global-batch-size", "SEQUENCES,...", "sequences a step", kDefaultBatch},
              set_axis(question.batches, 1, kMost));
  add_job_words(line, question.words, {"global_batch_size", "seq_len"});
  line.group("Cluster");
  line.option({"--gpus", "COUNT,...", "GPUs: 8..4096 (doubling), or 64,96,128", ""},
              set_axis(question.gpus, 1, kMostGpus));
  line.option(
      {"--hardware", "NAME,...", "built-in names or profiles", "h100-sxm"},
      {{.known = hardware_names()}, [&question](const std::string&, const std::string& text) {
         question.hardware = split_list(text);
       }});
  add_cluster_options(line, question.choices, {.with_gpus = false, .with_hardware = false});
  add_run_options(line, question);
  add_constraints(line, question.space);
  line.group("Output");
  line.option({"--threads", "COUNT", "threads that search", "all cores"},
              set_whole(question.threads, 1, 1024));
  line.flag("--json", "the same as JSON", question.json);
  line.flag("--timing", "also how long the searches took", question.timing);
  line.option({"-o,--output", "FILE", "file for the answer instead of the terminal", ""},
              set_text(question.output));
}

}  // namespace

Exit run_sweep(const Args& args, const Console& console) {
  SweepQuestion question;
  CommandLine line("sweep",
                   "A search per world size (or sequence length, batch, hardware): scaling, days, "
                   "cost, energy.",
                   "qplan sweep --model qwen3-30b-a3b --gpus 8..4096 --tokens 1T --price 2.5");
  add_options(line, question);
  if (!line.parse(args, console.out)) return Exit::done;
  const bool mixed = question.hardware.size() == 1 && names_cluster(question.hardware.front());
  if (question.gpus.empty() && mixed) {
    JobChoices choices = question.choices;
    choices.hardware = question.hardware.front();
    question.gpus = {make_job(choices)->gpus};
  }
  if (question.gpus.empty()) {
    throw Error("--gpus is missing; give one world size or a range such as 8..4096");
  }
  const Stopwatch stopwatch;
  const std::vector<Point> points = all_points(question, console);
  const double elapsed_s = stopwatch.elapsed_s();
  std::ostringstream text;
  if (question.json) {
    Json json = to_json(question, points);
    if (question.timing) json["elapsed_s"] = elapsed_s;
    text << answer_text("sweep", json);
  } else {
    print_text(question, points, text);
    if (question.timing) print(text, "elapsed {}\n", human_seconds(Seconds(elapsed_s)));
  }
  if (question.output.empty()) {
    console.out << text.str();
  } else {
    write_output(question.output, text.str(), console);
  }
  const bool any = std::any_of(points.begin(), points.end(),
                               [](const Point& point) { return point.best.has_value(); });
  return any ? Exit::done : Exit::nothing_fits;
}

}  // namespace qplan
