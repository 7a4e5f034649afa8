#include "cli/asked_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>
#include <system_error>

#include "models/error.h"
#include "planner/runs/run_log.h"
#include "planner/search/layout.h"

namespace qplan {
namespace {

// Whether every rule that `plan` breaks is one that `other` breaks, too.
bool breaks_no_more(const Job& job, const ParallelPlan& plan, const ParallelPlan& other) {
  const auto of = [&](const ParallelPlan& p) {
    return why_infeasible(job.model, p, job.recipe(), job.limits());
  };
  const std::vector<Infeasible> there = of(other);
  for (const Infeasible& here : of(plan)) {
    const auto same = [&](const Infeasible& reason) { return reason.rule == here.rule; };
    if (std::none_of(there.begin(), there.end(), same)) return false;
  }
  return true;
}

// A layout as the search finds it, where layers do not divide among the stages and nobody says: the
// faster of the framework's own and the one that evens out the work. Returns what to say of it.
std::string place_layers(const Job& job, ParallelPlan& plan) {
  const std::int64_t stages = std::int64_t{plan.pp} * chunks_per_rank(plan);
  if (!plan.pipeline_layout.empty() || job.model.num_layers % stages == 0) return "";
  if (!job.recipe().can.takes_layout || stages > job.model.num_layers + 2) return "";
  const auto time_of = [&](const ParallelPlan& tried) {
    const bool can_run = why_infeasible(job.model, tried, job.recipe(), job.limits()).empty();
    return can_run ? job.cost->step_time(tried) : Seconds(HUGE_VAL);
  };
  ParallelPlan own = plan;
  own.pipeline_layout = stage_layers(job.model, plan);
  const Seconds best = time_of(own);
  if (std::isinf(best.value())) {
    // What is wrong with the plan itself is said of it, and nothing of layers that a search places.
    if (breaks_no_more(job, own, plan)) plan = own;
    return "";
  }
  ParallelPlan even = own;
  even.pipeline_layout = balanced_layout(job.model.num_layers, own, job.cost->end_work(own));
  if (!even.pipeline_layout.empty() && time_of(even) < best) own = even;
  plan = own;
  return fmt::format(
      "{} layers do not divide among {} stages; they are placed as a search places them",
      job.model.num_layers, stages);
}

// What a line and options say, with `job`'s batch and length where they do not.
ParallelPlan plan_of(const Job& job, const std::string& line, const PlanWords& words,
                     const ParallelPlan& batch) {
  ParallelPlan plan =
      default_plan(job.model, job.recipe(), job.gpus, batch.global_batch_size, batch.seq_len);
  const bool says_dp = line_says(line, "dp");
  plan = with_words(line.empty() ? plan : parse_plan(line, plan), words, job.recipe(), job.gpus,
                    says_dp);
  const ParallelPlan usual = defaults_beside(plan, job.model, job.recipe());
  if (!is_said("grad_dtype", line, words)) plan.grad_dtype = usual.grad_dtype;
  if (!is_said("cp_comm", line, words)) plan.cp_comm = usual.cp_comm;
  if (!is_said("overlap", line, words)) plan.overlap = usual.overlap;
  if (!is_said("lora_dtype", line, words)) plan.lora_dtype = usual.lora_dtype;
  return plan;
}

// A plan from options alone, or from a line of plan words with options on top.
AskedPlan from_words(const PlanQuestion& question) {
  const std::string& text = question.plan;
  const ParallelPlan line = parse_plan(text);
  AskedPlan asked;
  if (!text.empty()) asked.notation = Notation::line;
  asked.job = make_job(question.choices, 0);
  Job& job = *asked.job;
  if (job.gpus == 0 && !text.empty()) job.gpus = line.world();
  if (job.gpus == 0) throw Error(kGpusMissing);
  refuse_two_values(text, question.words);
  ParallelPlan said = with_words(line, question.words, job.recipe(), job.gpus, true);
  asked.defaults = set_defaults(said,
                                {is_said("global_batch_size", text, question.words),
                                 is_said("seq_len", text, question.words)},
                                job.model, std::span(&job.gpus, 1));
  asked.plan = plan_of(job, text, question.words, said);
  asked.placed = place_layers(job, asked.plan);
  asked.with = [&job, said](const std::string& other, const PlanWords& words) {
    ParallelPlan plan = plan_of(job, other, words, said);
    place_layers(job, plan);
    return plan;
  };
  return asked;
}

// A file's plan with options on top.
ParallelPlan plan_of(const Job& job, const ParallelPlan& file, const PlanWords& words,
                     bool other_gpus) {
  // Another world or other degrees ask for another dp; else the file's stands.
  const bool other_degrees =
      other_gpus || words.contains("tp") || words.contains("pp") || words.contains("cp");
  ParallelPlan plan = with_words(file, words, job.recipe(), job.gpus, !other_degrees);
  // Without a context the file says nothing of how its ranks exchange.
  if (file.cp == 1 && plan.cp > 1 && !words.contains("cp_comm")) {
    plan.cp_comm = default_cp_comm(job.model, plan, job.recipe());
  }
  // A file says all words; those that hide what another word of it asks for go with that.
  if (file.zero > 0 && !words.contains("overlap")) {
    plan.overlap = overlap_at_zero(plan.zero, plan.overlap);
  }
  return plan;
}

AskedPlan from_file(const PlanQuestion& question) {
  const PlanFile file = read_plan_file(question.plan);
  AskedPlan asked;
  asked.notation = Notation::file;
  asked.step = file.step;
  asked.job = make_job(merged_with_file(question.choices, file, question.plan));
  Job& job = *asked.job;
  const bool other_gpus = question.choices.gpus.has_value();
  asked.plan = plan_of(job, file.plan, question.words, other_gpus);
  asked.with = [&job, plan = file.plan, other_gpus](const std::string&, const PlanWords& words) {
    return plan_of(job, plan, words, other_gpus);
  };
  // Another plan, or the same of another job, has another step program.
  const JobChoices& options = question.choices;
  const bool same_question = asked.plan == file.plan && !options.framework && !options.model &&
                             !options.hardware && overrides_to_json(options).empty();
  if (same_question) asked.fingerprint = file.fingerprint;
  return asked;
}

}  // namespace

void add_plan_question(CommandLine& line, PlanQuestion& question) {
  add_model_options(line, question.choices);
  add_job_words(line, question.words);
  add_cluster_options(line, question.choices);
  line.group("Plan");
  line.option({"--plan", "PLAN", "that is run: plan file, or a line such as \"tp4 pp2 mbs1\"",
               "the framework's defaults"},
              set_text(question.plan));
  add_plan_words(line, question.words);
}

bool is_said(std::string_view key, const std::string& line, const PlanWords& words) {
  return words.contains(key) || line_says(line, key);
}

std::string update_alone_text(const AskedPlan& asked) {
  if (!asked.step) return "";
  return fmt::format(
      "this is one optimizer step of {}'s update, on the GPUs that train; `qplan predict` of the "
      "plan file has the whole step",
      to_word(asked.step->job.algorithm));
}

void refuse_answers(const AskedPlan& asked, const std::string& file) {
  if (!asked.step || asked.step->job.algorithm == Algorithm::sft) return;
  throw Error(fmt::format(
      "{} is of a step of {}, and a run is played of training steps alone; give a plan of a search "
      "without --algorithm",
      file, to_word(asked.step->job.algorithm)));
}

std::string no_step_text(const std::string& log) {
  return fmt::format("{} says of no step how long it took; logs of {} are read", log,
                     word_list<LogKind>());
}

std::string other_plan_text(const std::string& log, const std::string& other) {
  return fmt::format("{} is of another plan: it says {}", log, other);
}

bool is_plan_file(const std::string& text) {
  std::error_code ignored;
  return text.ends_with(".json") || std::filesystem::exists(text, ignored);
}

AskedPlan asked_plan(const PlanQuestion& question) {
  return is_plan_file(question.plan) ? from_file(question) : from_words(question);
}

}  // namespace qplan
