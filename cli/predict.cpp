// `qplan predict`: everything about one plan.

#include <fmt/format.h>

#include <filesystem>
#include <ostream>
#include <utility>

#include "cli/advice.h"
#include "cli/commands.h"
#include "cli/plan_words.h"
#include "cli/print.h"
#include "cli/report.h"
#include "cli/stopwatch.h"
#include "models/error.h"
#include "planner/search/goodput.h"

namespace qplan {
namespace {

struct PredictQuestion {
  JobChoices choices;
  PlanWords words;
  std::string plan, output;
  double storage_gb_per_s = Reliability{}.storage_per_node.value() / 1e9;
  bool json = false, timing = false;
};

struct Asked {
  std::unique_ptr<Job> job;
  ParallelPlan plan;
  std::string fingerprint;  // of the plan file; empty: none
};

bool is_file(const std::string& text) {
  std::error_code ignored;
  return text.ends_with(".json") || std::filesystem::exists(text, ignored);
}

std::int64_t number_or(const PlanWords& words, std::string_view key, std::int64_t fallback) {
  const auto found = words.find(key);
  // The option's own check has passed: digits.
  return found == words.end() ? fallback : std::stoll(found->second);
}

// A plan from options alone, or from a line of plan words with options on top.
Asked from_words(const PredictQuestion& question) {
  const ParallelPlan line = parse_plan(question.plan);
  const bool has_line = !question.plan.empty();
  Asked asked;
  asked.job = make_job(question.choices, 0);
  Job& job = *asked.job;
  const std::int64_t seq_len =
      number_or(question.words, "seq_len", has_line ? line.seq_len : ParallelPlan{}.seq_len);
  if (job.gpus == 0 && has_line) job.gpus = line.world();
  if (job.gpus == 0) throw Error("--gpus is missing; say how many GPUs the job has");
  const std::int64_t batch =
      number_or(question.words, "global_batch_size", default_global_batch_size(job.gpus, seq_len));
  const ParallelPlan defaults = default_plan(job.model, job.recipe(), job.gpus, batch, seq_len);
  const bool says_dp = has_line && line_says(question.plan, &ParallelPlan::dp);
  asked.plan = with_words(has_line ? parse_plan(question.plan, defaults) : defaults, question.words,
                          job.recipe(), job.gpus, says_dp);
  return asked;
}

Asked from_file(const PredictQuestion& question) {
  const PlanFile file = read_plan_file(question.plan);
  Asked asked;
  asked.job = make_job(merged(question.choices, file.choices));
  Job& job = *asked.job;
  // Another world or other degrees ask for another dp; else the file's stands.
  const bool other_degrees = question.choices.gpus || question.words.contains("tp") ||
                             question.words.contains("pp") || question.words.contains("cp");
  asked.plan = with_words(file.plan, question.words, job.recipe(), job.gpus, !other_degrees);
  const bool same_question = question.words.empty() && !question.choices.framework &&
                             !question.choices.model && !question.choices.hardware;
  if (same_question) asked.fingerprint = file.fingerprint;
  return asked;
}

// ---- text ----

std::string stages_text(const Estimate& e) {
  std::vector<Table::Column> columns{{"stage", ""}};
  for (const MemoryPart& part : memory_parts()) columns.push_back({std::string(part.label), "GiB"});
  columns.push_back({"allocated", "GiB"});
  columns.push_back({"reserved", "GiB"});
  columns.push_back({"device", "GiB"});
  columns.push_back({"of what may be filled", "", Align::left});
  Table table(columns);
  const int count = static_cast<int>(e.memory.stages.size());
  for (int i = 0; i < count; ++i) {
    // Middle stages of a long pipeline are alike; first, last and worst tell.
    constexpr int kEdge = 4;
    if (count > 2 * kEdge + 1 && i >= kEdge && i < count - kEdge && i != e.memory.worst) {
      if (i == kEdge || i == e.memory.worst + 1) table.row({"..."});
      continue;
    }
    const StageMemory& stage = e.memory.stages[static_cast<std::size_t>(i)];
    std::vector<std::string> cells{fmt::format("{}{}", i == e.memory.worst ? "*" : "", i)};
    for (const MemoryPart& part : memory_parts())
      cells.push_back(fixed(in_gib(stage.*part.value), 2));
    for (const Bytes bytes : {stage.peak, stage.reserved, stage.device}) {
      cells.push_back(fixed(in_gib(bytes), 2));
    }
    cells.push_back(memory_bar(stage, e.capacity, 24));
    table.row(cells);
  }
  return table.text();
}

std::string parts_text(const Estimate& e) {
  Table table({{"part of the step", "", Align::left},
               {"time", "s"},
               {"share", "%"},
               {"", "", Align::left}});
  for (const TimePart& part : time_parts()) {
    const Seconds time = e.time.*part.value;
    if (time.value() == 0) continue;
    const double share = time / e.time.total();
    std::string drawn = bar({{part.letter, share}}, 50);
    drawn.erase(drawn.find_last_not_of('.') + 1);
    table.row({std::string(part.label), significant(time.value()), percent(share), drawn});
  }
  table.row({"step", significant(e.time.total().value()), "100.0"});
  return table.text();
}

std::string summary_text(const Estimate& e) {
  const PricedFrom& from = e.priced_from;
  const auto whole = [](double share) { return fixed(100 * share, 0); };
  std::string text = fmt::format(
      "step time    {}, 80% interval {} .. {}; priced from tables {}%, formulas {}%, assumptions "
      "{}%\n",
      human_seconds(e.step_time), human_seconds(e.step_time_low), human_seconds(e.step_time_high),
      whole(from.table), whole(from.formula), whole(from.assumed));
  text += fmt::format("throughput   {} tokens/s a GPU, {} tokens/s\n",
                      significant(e.tokens_per_s_per_gpu, 4), human_count(e.tokens_per_s));
  text += fmt::format("MFU          {}%, {} model TFLOP/s a GPU\n", percent(e.mfu),
                      significant(e.model_tflops_per_gpu));
  text +=
      fmt::format("peak memory  {} allocated ({} .. {}), {} reserved, {} on the device\n",
                  human_bytes(largest(e.memory, &StageMemory::peak)), human_bytes(e.peak_low),
                  human_bytes(e.peak_high), human_bytes(largest(e.memory, &StageMemory::reserved)),
                  human_bytes(largest(e.memory, &StageMemory::device)));
  if (e.memory.host_per_node.value() > 0) {
    text += fmt::format("host memory  {} a node, pinned\n", human_bytes(e.memory.host_per_node));
  }
  return text;
}

std::string checkpoint_text(const Job& job, double storage_gb_per_s) {
  const Bytes bytes = checkpoint_bytes(job.model);
  const std::int64_t per_node = job.hardware.link.gpus_per_node;
  const auto nodes = static_cast<double>((job.gpus + per_node - 1) / per_node);
  return fmt::format("checkpoint   {} (14 bytes a parameter), {} to save at {} GB/s a node\n",
                     human_bytes(bytes), human_seconds(bytes / gb_per_s(storage_gb_per_s * nodes)),
                     significant(storage_gb_per_s));
}

// What is said of the plan, and of the file it came from.
std::vector<std::string> all_notes(const Asked& asked, const Answer& answer) {
  std::vector<std::string> list;
  if (answer.estimate && !asked.fingerprint.empty() &&
      asked.fingerprint != fingerprint_of(*asked.job, answer.plan)) {
    list.emplace_back(
        "the step program has changed since the plan file was written; its numbers were of the old "
        "one");
  }
  for (std::string& note : notes_of(*asked.job, answer)) list.push_back(std::move(note));
  return list;
}

void print_text(const Asked& asked, const Answer& answer, const PredictQuestion& question,
                std::ostream& out) {
  const Job& job = *asked.job;
  out << model_line(job)
      << batch_line(job, answer.plan.global_batch_size, answer.plan.seq_len, answer.plan.precision)
      << wrapped("plan         " + to_string(answer.plan), 116, 13);
  const std::string notes = notes_text(all_notes(asked, answer));
  if (!answer.estimate) {
    out << notes << "\nThis plan cannot run:\n";
    for (const Infeasible& reason : answer.infeasible) {
      out << wrapped(fmt::format("  {}: {}", reason.rule, reason.message), 116, 4);
      if (!reason.source.empty()) out << wrapped(fmt::format("    [{}]", reason.source), 116, 5);
    }
    return;
  }
  const Estimate& e = *answer.estimate;
  out << wrapped("groups       " + groups_text(job, answer.plan), 116, 13) << '\n'
      << summary_text(e) << checkpoint_text(job, question.storage_gb_per_s) << '\n'
      << stages_text(e) << wrapped(memory_legend(), 116) << '\n'
      << parts_text(e) << notes;
  if (answer.feasible()) return;
  print(out, "\nThis plan does not fit: {}.\n", answer.infeasible.front().message);
  const auto advice = what_makes_plan_fit(job, answer.plan);
  out << (advice.empty() ? "No single change of it fits; `qplan search` looks at all plans.\n"
                         : "It would with:\n" + advice_text(advice));
}

Json to_json(const Asked& asked, const Answer& answer, const PredictQuestion& question) {
  const Job& job = *asked.job;
  Json object = report(job, answer);
  object["notes"] = all_notes(asked, answer);
  if (answer.estimate) {
    const std::int64_t per_node = job.hardware.link.gpus_per_node;
    const auto nodes = static_cast<double>((job.gpus + per_node - 1) / per_node);
    const Bytes bytes = checkpoint_bytes(job.model);
    object["checkpoint"] = {
        {"gib", in_gib(bytes)},
        {"save_s", (bytes / gb_per_s(question.storage_gb_per_s * nodes)).value()},
        {"storage_gb_per_s_per_node", question.storage_gb_per_s}};
    if (!answer.feasible()) {
      object["would_fit"] = advice_json(what_makes_plan_fit(job, answer.plan));
    }
  }
  return object;
}

}  // namespace

Exit run_predict(const Args& args, const Console& console) {
  PredictQuestion question;
  CommandLine line("predict", "One plan: its memory, step time and where both go.",
                   "qplan predict --model llama3-70b --gpus 64 --tp 4 --pp 2 --micro-batch-size 1\n"
                   "         qplan predict --plan plan.json --hardware h200-sxm");
  add_model_options(line, question.choices);
  add_job_words(line, question.words);
  add_cluster_options(line, question.choices);
  line.option(
      {"--storage-gb-per-s", "GB_PER_S", "rate at which one node writes a checkpoint (assumed)",
       significant(question.storage_gb_per_s)},
      set_number(question.storage_gb_per_s, 0.001, 1e5));
  line.group("Plan");
  line.option({"--plan", "PLAN",
               "plan file, or a line such as \"tp4 pp2 dp8 zero1 mbs2\"; the "
               "options below change it",
               "the framework's defaults"},
              set_text(question.plan));
  add_plan_words(line, question.words);
  line.group("Output");
  line.flag("--json", "the same as JSON", question.json);
  line.flag("--timing", "also how long the answer took", question.timing);
  line.option({"-o,--output", "FILE", "plan file to write", ""}, set_text(question.output));
  if (!line.parse(args, console.out)) return Exit::done;

  const Asked asked = is_file(question.plan) ? from_file(question) : from_words(question);
  const Stopwatch stopwatch;
  const Answer answer = ask(*asked.job, asked.plan);
  const double elapsed_s = stopwatch.elapsed_s();
  if (!question.output.empty()) {
    Json file = report(*asked.job, answer);
    embed_job(file, *asked.job);
    write_file_atomically(question.output, json_text(file));
  }
  if (question.json) {
    Json json = to_json(asked, answer, question);
    if (question.timing) json["elapsed_s"] = elapsed_s;
    console.out << json_text(json);
  } else {
    print_text(asked, answer, question, console.out);
    if (question.timing) {
      print(console.out, "elapsed {}\n", human_seconds(Seconds(elapsed_s)));
    }
  }
  return answer.feasible() ? Exit::done : Exit::nothing_fits;
}

}  // namespace qplan
