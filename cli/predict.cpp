// `qplan predict`: everything about one plan.

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <sstream>
#include <utility>

#include "cli/advice.h"
#include "cli/answer.h"
#include "cli/asked_plan.h"
#include "cli/commands.h"
#include "cli/notes.h"
#include "cli/output.h"
#include "cli/page.h"
#include "cli/plan_words.h"
#include "cli/print.h"
#include "cli/reliability_options.h"
#include "cli/report.h"
#include "cli/rl.h"
#include "cli/stopwatch.h"
#include "models/error.h"
#include "models/plan/words.h"
#include "models/program/step_program.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/search/goodput.h"

namespace qplan {
namespace {

struct PredictQuestion : PlanQuestion {
  std::string line, output;
  RlQuestion rl;
  StorageRates storage;
  bool json = false, timing = false;
};

// The plan without each word that was given, of options and of the line. Batch, length and what
// else belongs to the job stay.
std::vector<NamedPlan> without_each_word(const AskedPlan& asked, const PredictQuestion& question) {
  std::vector<NamedPlan> plans;
  const auto add = [&](const std::string& word, const std::string& line, const PlanWords& words) {
    ParallelPlan plan = asked.with(line, words);
    bool same_job = plan.world() == asked.plan.world();
    for_each_word([&](const auto& row) {
      const bool differs = plan.*row.member != asked.plan.*row.member;
      if (row.gives_way == GivesWay::never && differs) same_job = false;
    });
    if (same_job && plan != asked.plan) plans.push_back({"without " + word, std::move(plan)});
  };
  const bool has_line = asked.notation == Notation::line;
  for (const auto& [key, value] : question.words) {
    PlanWords others = question.words;
    others.erase(key);
    add(option_name(key), question.plan, others);
  }
  std::istringstream line(has_line ? question.plan : "");
  std::vector<std::string> words;
  for (std::string word; line >> word;) words.push_back(word);
  for (std::size_t left_out = 0; left_out < words.size() && words.size() > 1; ++left_out) {
    std::string others;
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (i != left_out) others += (others.empty() ? "" : " ") + words[i];
    }
    add(words[left_out], others, question.words);
  }
  return plans;
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
    for (const MemoryPart& part : memory_parts()) {
      cells.push_back(fixed(in_gib(stage.*part.value), 2));
    }
    for (const Bytes bytes : {stage.peak, stage.reserved, stage.device}) {
      cells.push_back(fixed(in_gib(bytes), 2));
    }
    cells.push_back(memory_bar(stage, e.capacity, 24));
    table.row(cells);
  }
  return table.text(page().table);
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
  return table.text(page().table);
}

// "step time    12 s, ...": what follows of it stands below what it says.
std::string named_line(const std::string& line) {
  return wrapped(line, page().text, 13);
}

std::string summary_text(const Job& job, const Answer& answer) {
  const Estimate& e = *answer.estimate;
  const PricedFrom& from = e.priced_from;
  const auto whole = [](double share) { return fixed(100 * share, 0); };
  std::string text = named_line(fmt::format(
      "step time    {}, 80% interval {} .. {}; priced from tables {}%, formulas {}%, assumptions "
      "{}%",
      human_seconds(e.step_time), human_seconds(e.step_time_low), human_seconds(e.step_time_high),
      whole(from.table), whole(from.formula), whole(from.assumed)));
  text +=
      named_line(fmt::format("throughput   {} tokens/s a GPU, {} tokens/s",
                             significant(e.tokens_per_s_per_gpu, 4), human_count(e.tokens_per_s)));
  text += named_line(fmt::format("MFU          {}, {} model TFLOP/s a GPU", mfu_text(job, answer),
                                 significant(e.model_tflops_per_gpu)));
  const auto peak = [&](Bytes StageMemory::*value) {
    return human_bytes(largest(e.memory, value));
  };
  text += named_line(
      fmt::format("peak memory  {} allocated ({} .. {}), {} reserved, {} on the device",
                  peak(&StageMemory::peak), human_bytes(e.peak_low), human_bytes(e.peak_high),
                  peak(&StageMemory::reserved), peak(&StageMemory::device)));
  if (e.memory.host_per_node.value() > 0) {
    text += named_line(
        fmt::format("host memory  {} a node, pinned", human_bytes(e.memory.host_per_node)));
  }
  return text;
}

struct CheckpointSize {
  Bytes bytes;
  double of_parameter = 0;
  Seconds save;
};

CheckpointSize checkpoint_of(const Job& job, const ParallelPlan& plan, const StorageRates& rates) {
  const Bytes bytes = checkpoint_bytes(job.model, job.recipe(), plan);
  const ParameterCount count = count_parameters(job.model);
  return {bytes, bytes.value() / static_cast<double>(count.total() + count.mtp),
          rates.storage().time_of(bytes, nodes_for(job.hardware, job.gpus))};
}

std::string checkpoint_text(const Job& job, const ParallelPlan& plan, const StorageRates& rates) {
  const CheckpointSize size = checkpoint_of(job, plan, rates);
  return named_line(fmt::format("checkpoint   {} ({:.3g} bytes a parameter), {} to save at {}",
                                human_bytes(size.bytes), size.of_parameter,
                                human_seconds(size.save),
                                rate_text(rates, nodes_for(job.hardware, job.gpus))));
}

// What is said of the plan, and of the file it came from.
std::vector<std::string> all_notes(const AskedPlan& asked, const Answer& answer) {
  std::vector<std::string> list;
  if (!asked.placed.empty()) list.push_back(asked.placed);
  if (answer.estimate && !asked.fingerprint.empty() &&
      asked.fingerprint != fingerprint_of(*asked.job, answer.plan)) {
    list.emplace_back(
        "the step program has changed since the plan file was written; its numbers were of the old "
        "one");
  }
  for (std::string& note : notes_of(*asked.job, answer)) list.push_back(std::move(note));
  return list;
}

void print_text(const AskedPlan& asked, const Answer& answer, const PredictQuestion& question,
                std::ostream& out) {
  const Job& job = *asked.job;
  out << model_line(job)
      << batch_line(job, answer.plan.global_batch_size, answer.plan.seq_len, answer.plan.precision)
      << defaults_text(asked.defaults)
      << wrapped("plan         " + line_of(job, answer.plan), page().text, 13);
  const std::string notes = notes_text(all_notes(asked, answer));
  if (!answer.estimate) {
    out << notes << "\nThis plan cannot run:\n";
    for (const Infeasible& reason : answer.infeasible) {
      const std::string message = in_notation(reason.message, asked.notation);
      out << wrapped(fmt::format("  {}: {}", reason.rule, message), page().text, 4);
      if (!reason.source.empty())
        out << wrapped(fmt::format("    [{}]", reason.source), page().text, 5);
    }
    return;
  }
  const Estimate& e = *answer.estimate;
  out << named_line("groups       " + groups_text(job, answer.plan)) << '\n'
      << summary_text(job, answer) << checkpoint_text(job, answer.plan, question.storage) << '\n'
      << stages_text(e) << wrapped(memory_legend(), page().text) << '\n'
      << parts_text(e) << notes;
  if (answer.feasible()) return;
  out << '\n'
      << wrapped(fmt::format("This plan does not fit: {}.", answer.infeasible.front().message),
                 page().text);
  const auto advice = what_makes_plan_fit(job, answer.plan, without_each_word(asked, question));
  out << (advice.empty()
              ? wrapped("No change of it that was tried fits; `qplan search` looks at all plans.",
                        page().text)
              : "It would with:\n" + advice_text(advice));
}

// A step of --algorithm: its phases around the update that `asked` is.
struct AskedRl {
  RlJob job;
  RolloutLayout layout;
  std::optional<RlEstimate> estimate;  // none: a rule forbids the update's plan
};

// The step that options ask for, or else that of the plan file.
std::optional<RlStep> asked_step(const PredictQuestion& question) {
  RlJob job = rl_job_of(question.rl);
  if (question.rl.asked()) return RlStep{std::move(job), rollout_layout_of(question.rl)};
  if (!is_plan_file(question.plan)) return std::nullopt;
  return read_plan_file(question.plan).step;
}

// The length of its sequences where nobody says it, and no batch: that follows.
void set_rl_words(PredictQuestion& question, const RlJob& job) {
  const std::string& line = is_plan_file(question.plan) ? std::string() : question.plan;
  refuse_batch(question.words.contains("global_batch_size"));
  // The plan is of the GPUs that train.
  if (question.choices.gpus && job.rollout_gpus > 0) {
    if (job.rollout_gpus >= *question.choices.gpus) {
      throw Error(fmt::format("--rollout-gpus {} of --gpus {} leave none to train",
                              job.rollout_gpus, *question.choices.gpus));
    }
    *question.choices.gpus -= job.rollout_gpus;
  }
  if (is_plan_file(question.plan)) return;
  if (!is_said("seq_len", line, question.words)) {
    question.words["seq_len"] = std::to_string(longest_of(job));
  }
}

// A line that search printed says its batch, too.
void refuse_other_batch(const std::string& line, std::int64_t said, std::int64_t packed) {
  if (is_plan_file(line) || !line_says(line, "global_batch_size") || said == packed) return;
  throw Error(
      fmt::format("gbs{} is not the {} sequences that the answers of an optimizer step make; leave "
                  "it out of the line",
                  said, packed));
}

AskedRl ask_rl(RlStep step, AskedPlan& asked, const std::string& line) {
  AskedRl rl{.job = std::move(step.job), .layout = step.layout, .estimate = {}};
  const Job& train = *asked.job;
  rl.job.change_of_hands = change_of_hands_in(train.choices.files);
  const std::int64_t gpus = train.gpus + rl.job.rollout_gpus;
  const auto faults = rl_faults(rl.job, train.model, asked.plan, rl.layout, gpus);
  if (!faults.empty()) throw Error(fmt::format("the step cannot be: {}", fmt::join(faults, "; ")));
  asked.defaults = {};
  const ParallelPlan update = update_plan(rl.job, train.model, asked.plan);
  refuse_other_batch(line, asked.plan.global_batch_size, update.global_batch_size);
  if (why_infeasible(train.model, update, train.recipe(), train.limits()).empty()) {
    rl.estimate = evaluate_rl(*train.cost, rl.job, asked.plan, rl.layout, gpus);
  }
  asked.plan = update;
  return rl;
}

Json to_json(const AskedPlan& asked, const Answer& answer, const PredictQuestion& question) {
  const Job& job = *asked.job;
  Json object = report(job, answer);
  object["notes"] = all_notes(asked, answer);
  if (answer.estimate) {
    const CheckpointSize size = checkpoint_of(job, answer.plan, question.storage);
    object["checkpoint"] = {{"gib", in_gib(size.bytes)},
                            {"bytes_per_parameter", size.of_parameter},
                            {"save_s", size.save.value()},
                            {"storage_gb_per_s_per_node", question.storage.node_gb_per_s}};
    if (!answer.feasible()) {
      object["would_fit"] = advice_json(
          job, what_makes_plan_fit(job, answer.plan, without_each_word(asked, question)));
    }
  }
  return object;
}

}  // namespace

Exit run_predict(const Args& args, const Console& console) {
  PredictQuestion question;
  CommandLine line("predict", "One plan: its memory, step time and where both go.",
                   "qplan predict --model llama3-70b --gpus 64 --tp 4 --pp 4 --micro-batch-size 1\n"
                   "         qplan predict --plan plan.json --hardware h200-sxm");
  add_model_options(line, question.choices);
  add_job_words(line, question.words);
  add_cluster_options(line, question.choices);
  add_storage_rates(line, question.storage);
  line.positional("PLAN", "the same as --plan", question.line);
  line.group("Plan");
  line.option({"--plan", "PLAN",
               "plan file, or a line such as \"tp4 pp2 dp8 zero1 mbs2\"; the "
               "options below change it",
               "the framework's defaults"},
              set_text(question.plan));
  add_plan_words(line, question.words);
  add_rl_options(line, question.rl);
  line.group("Output");
  line.flag("--json", "the same as JSON", question.json);
  line.flag("--timing", "also how long the answer took", question.timing);
  line.option({"-o,--output", "FILE", "plan file to write", ""}, set_text(question.output));
  if (!line.parse(args, console.out)) return Exit::done;
  refuse_one_stream(question.output, question.json);

  if (!question.line.empty()) {
    if (!question.plan.empty()) {
      throw Error("predict is given a plan and --plan; give one of them");
    }
    question.plan = question.line;
  }
  const std::optional<RlStep> step = asked_step(question);
  if (step) set_rl_words(question, step->job);
  AskedPlan asked = asked_plan(question);
  const Stopwatch stopwatch;
  std::optional<AskedRl> rl;
  if (step) rl = ask_rl(*step, asked, question.plan);
  const Answer answer = ask(*asked.job, asked.plan);
  const double elapsed_s = stopwatch.elapsed_s();
  const auto step_json = [&] { return rl_json({rl->job, rl->layout}, *rl->estimate); };
  if (!question.output.empty()) {
    Json file = report(*asked.job, answer);
    if (rl && rl->estimate) file["step"] = rl_file_json({rl->job, rl->layout}, step_json());
    embed_job(file, *asked.job);
    write_output(question.output, answer_text("plan", file), console);
  }
  const Console beside = beside_output(question.output, console);
  if (question.json) {
    Json json = to_json(asked, answer, question);
    if (question.timing) json["elapsed_s"] = elapsed_s;
    if (rl && rl->estimate) json["step"] = step_json();
    beside.out << answer_text("predict", json);
  } else {
    if (rl) beside.out << rl_job_text(rl->job) << '\n';
    if (rl && rl->estimate) {
      beside.out << phases_text(*rl->estimate) << "\nOne optimizer step of the update:\n";
    }
    print_text(asked, answer, question, beside.out);
    if (question.timing) {
      print(beside.out, "elapsed {}\n", human_seconds(Seconds(elapsed_s)));
    }
  }
  const bool fits = !rl || (rl->estimate && rl->estimate->fits);
  return answer.feasible() && fits ? Exit::done : Exit::nothing_fits;
}

}  // namespace qplan
