#include "cli/asked_plan.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <span>
#include <system_error>

#include "models/error.h"
#include "planner/search/layout.h"

namespace qplan {
namespace {

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
  if (std::isinf(best.value())) return "";  // what is wrong with the plan itself is said of it
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
  const ParallelPlan said = with_words(parse_plan(line), words, job.recipe(), job.gpus, true);
  ParallelPlan plan =
      default_plan(job.model, job.recipe(), job.gpus, batch.global_batch_size, batch.seq_len);
  plan.precision = said.precision;
  plan.grad_dtype = default_grad_dtype(job.recipe(), said.precision);
  const bool says_dp = !line.empty() && line_says(line, &ParallelPlan::dp);
  plan = with_words(line.empty() ? plan : parse_plan(line, plan), words, job.recipe(), job.gpus,
                    says_dp);
  if (plan.cp > 1 && !is_said("cp_comm", &ParallelPlan::cp_comm, line, words)) {
    plan.cp_comm = default_cp_comm(job.model, plan, job.recipe());
  }
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
  if (job.gpus == 0) throw Error("--gpus is missing; say how many GPUs the job has");
  const auto says = [&](std::string_view key, auto ParallelPlan::*word) {
    return is_said(key, word, text, question.words);
  };
  ParallelPlan said = with_words(line, question.words, job.recipe(), job.gpus, true);
  asked.defaults = set_defaults(said,
                                {says("global_batch_size", &ParallelPlan::global_batch_size),
                                 says("seq_len", &ParallelPlan::seq_len)},
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
  return plan;
}

AskedPlan from_file(const PlanQuestion& question) {
  const PlanFile file = read_plan_file(question.plan);
  AskedPlan asked;
  asked.notation = Notation::file;
  asked.job = make_job(merged(question.choices, file.choices));
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

bool is_plan_file(const std::string& text) {
  std::error_code ignored;
  return text.ends_with(".json") || std::filesystem::exists(text, ignored);
}

AskedPlan asked_plan(const PlanQuestion& question) {
  return is_plan_file(question.plan) ? from_file(question) : from_words(question);
}

}  // namespace qplan
