// `qplan search`: the best plans, what limits them, and why the others lost.

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <utility>

#include "cli/advice.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/explain.h"
#include "cli/notes.h"
#include "cli/output.h"
#include "cli/page.h"
#include "cli/print.h"
#include "cli/progress.h"
#include "cli/search_answer.h"
#include "cli/stopwatch.h"
#include "executor/gpu_limits.h"
#include "models/error.h"
#include "planner/frameworks/rl/rl.h"
#include "planner/frameworks/written_plans.h"
#include "planner/search/untried.h"

namespace qplan {
namespace {

// Without those that the framework, or our own executor, refuses.
std::vector<UntriedSetting> untried_of(const Job& job, const SearchSpace& space,
                                       const ParallelPlan& best) {
  std::vector<UntriedSetting> untried;
  for (const RankedPlan& ranked : untried_settings(*job.cost, space, best)) {
    if (job.recipe().executable && unexecuted_on_gpu(job.model, ranked.plan)) continue;
    const auto unsaid = why_unwritten(job, ranked.plan);
    // What only our own writers lack begins so.
    if (unsaid && !unsaid->message.starts_with("qplan writes")) continue;
    untried.push_back({ranked, !unsaid});
  }
  return untried;
}

}  // namespace

// ---- one search ----

FoundPlans find_plans(Job& job, const SearchQuestion& question, const Console& console, double from,
                      double to) {
  const Stopwatch stopwatch;
  SearchOptions options;
  options.top = static_cast<int>(question.top);
  options.threads = static_cast<int>(question.threads);
  options.objective = question.objective;
  options.progress = progress_of(console, from, to);
  FoundPlans found;
  found.result = search_offered(job, question.space, options);
  end_progress(console);
  // Cheaper or fewer may mean fewer GPUs than were offered.
  if (!found.result.plans.empty()) job.gpus = found.result.plans.front().plan.world();
  for (const RankedPlan& ranked : found.result.plans) found.plans.push_back(ask(job, ranked.plan));
  if (!found.plans.empty()) {
    found.untried = untried_of(job, question.space, found.plans.front().plan);
  }
  found.elapsed_s = stopwatch.elapsed_s();
  return found;
}

bool is_tie(const FoundPlans& found, std::size_t i) {
  return i > 0 && cannot_be_told(found.plans[0], found.plans[i]);
}

void write_plan(const Job& job, const Answer& answer, const std::string& path,
                const Console& console) {
  Json file = report(job, answer);
  embed_job(file, job);
  write_output(path, answer_text("plan", file), console);
}

namespace {

// ---- text ----

// Of the best plan; what holds for every plan of the search stands above the table already.
std::vector<std::string> notes_of_plan(const Job& job, const Answer& answer) {
  std::vector<std::string> list = notes_of(job, answer);
  for (const std::string& said : length_notes(job.model, answer.plan.seq_len)) {
    std::erase(list, said);
  }
  return list;
}

std::string ranking_text(const Job& job, const FoundPlans& found) {
  // Every plan of a search has the same precision.
  const Precision peak = peak_of(job, found.plans.front()).format;
  const bool is_bf16 = peak == Precision::bf16;
  std::vector<Table::Column> columns{
      {"#", ""},         {"", "", Align::left},
      {"step", "s"},     {"interval", "s", Align::left},
      {"tok/s/GPU", ""}, {"MFU", is_bf16 ? "%" : "% of " + std::string(to_word(peak))}};
  if (!is_bf16) columns.push_back({"MFU", "% of bf16"});
  columns.insert(columns.end(), {{"peak", "GiB"},
                                 {"bubble", "%"},
                                 {"exposed", "%"},
                                 {"memory", "", Align::left},
                                 {"time", "", Align::left}});
  Table table(columns);
  const bool marks = std::any_of(found.plans.begin(), found.plans.end(),
                                 [](const Answer& a) { return rests_on_assumptions(*a.estimate); });
  const CommonWords words = split_common_words(found.plans);
  for (std::size_t i = 0; i < found.plans.size(); ++i) {
    const Estimate& e = *found.plans[i].estimate;
    const StageMemory& worst = e.memory.worst_stage();
    const std::string mark = !marks ? "" : rests_on_assumptions(e) ? "*" : " ";
    std::vector<std::string> cells{fmt::format("{}", i + 1),
                                   is_tie(found, i) ? "tie" : "",
                                   significant(e.step_time.value(), 4) + mark,
                                   fmt::format("{} .. {}", significant(e.step_time_low.value()),
                                               significant(e.step_time_high.value())),
                                   significant(e.tokens_per_s_per_gpu, 4),
                                   percent(e.mfu) + mark};
    if (!is_bf16) cells.push_back(percent(peak_of(job, found.plans[i]).mfu_bf16) + mark);
    cells.insert(cells.end(),
                 {fixed(in_gib(worst.device), 1), percent(e.time.pp_bubble / e.time.total()),
                  percent(exposed_communication(e)), memory_bar(worst, e.capacity, 18),
                  time_bar(e.time, 18)});
    table.row(cells);
    if (!words.own[i].empty()) table.note("   " + words.own[i]);
  }
  std::string text = table.text(page().table);
  if (marks) text += wrapped(kAssumedMark, page().text, 2);
  if (!words.common.empty()) text += wrapped("all with: " + words.common, page().text, 10);
  return text + '\n' + wrapped("memory: " + memory_legend(), page().text, 8) +
         wrapped("time:   " + time_legend(), page().text, 8);
}

std::string pareto_text(const Job& job, const SearchResult& result) {
  Table table({{"memory", "GiB"}, {"step", "s"}, {"plan", "", Align::left}});
  for (const RankedPlan& plan : result.pareto) {
    table.row({fixed(in_gib(plan.device_peak), 1), significant(plan.step_time.value(), 4),
               line_of(job, plan.plan)});
  }
  return "\nLess memory, more time (of the plans simulated):\n" + table.text(page().table);
}

std::string counts_text(const Job& job, const SearchQuestion& question,
                        const SearchResult& result) {
  std::int64_t refused = 0;
  for (const auto& [rule, of_rule] : result.infeasible) refused += of_rule.plans;
  std::string text = wrapped(
      fmt::format(
          "{} plans considered: {} against a rule, {} out of memory, {} bounded out (cannot "
          "be faster), {} simulated.",
          grouped(result.considered), grouped(refused), grouped(result.out_of_memory),
          grouped(result.bounded_out), grouped(result.simulated)),
      page().text);
  return text + rules_text(job, question.space, result.infeasible);
}

void print_nothing(const Job& job, const SearchQuestion& question, const FoundPlans& found,
                   std::ostream& out) {
  const SearchResult& result = found.result;
  out << "Nothing fits.\n\n" << counts_text(job, question, result);
  if (result.considered == 0) {
    print(out, "The degrees asked for make no plan of {} GPUs: tp x cp x pp must divide them{}.\n",
          question.space.gpus,
          question.space[&ParallelPlan::dp].empty() ? "" : ", and dp be the rest");
    return;
  }
  if (result.smallest) {
    print(out, "\nThe plan that needs least has {}:\n", excess_text(job, *result.smallest));
    out << wrapped("  " + line_of(job, result.smallest->plan), page().text, 2);
  }
  const auto advice = what_makes_job_fit(job, question.space);
  out << (advice.empty() ? "\n" + wrapped(nothing_helps(), page().text)
                         : "\nIt would fit with:\n" + advice_text(advice));
}

void print_text(const Job& job, const SearchQuestion& question, const FoundPlans& found,
                std::ostream& out) {
  out << model_line(job)
      << batch_line(job, question.space.job.global_batch_size, question.space.job.seq_len,
                    question.space.job.precision)
      << defaults_text(question.defaults)
      << notes_text(search_notes(job.model, question.space, question.defaults)) << '\n';
  if (found.plans.empty()) {
    print_nothing(job, question, found, out);
  } else {
    out << ranking_text(job, found) << '\n'
        << wrapped("best:   " + line_of(job, found.plans.front().plan), page().text, 8)
        << notes_text(notes_of_plan(job, found.plans.front()))
        << limits_text(job, found.plans.front())
        << untried_text(found.plans.front().plan, found.plans.front().estimate->step_time,
                        found.untried);
    if (found.plans.size() > 1) {
      out << runner_up_text(found.plans[0], found.plans[1], is_tie(found, 1));
    }
    out << '\n' << counts_text(job, question, found.result);
    if (question.pareto) out << pareto_text(job, found.result);
  }
  if (question.timing) print(out, "elapsed {}\n", human_seconds(Seconds(found.elapsed_s)));
}

// ---- JSON ----

// A plan that does not fit is not timed.
Json ranked_json(const Job& job, const RankedPlan& plan) {
  const double time = plan.step_time.value();
  return {{"short", line_of(job, plan.plan)},
          {"step_time_s", time > 0 ? Json(time) : Json(nullptr)},
          {"device_peak_gib", in_gib(plan.device_peak)}};
}

}  // namespace

Json search_json(const Job& job, const SearchQuestion& question, const FoundPlans& found) {
  const SearchResult& result = found.result;
  Json object{{"model", job.model.name},
              {"hardware", job.hardware.name},
              {"framework", to_word(job.framework)},
              {"gpus", question.space.gpus},
              {"global_batch_size", question.space.job.global_batch_size},
              {"seq_len", question.space.job.seq_len},
              {"precision", to_word(question.space.job.precision)},
              {"defaults", defaults_json(question.defaults)},
              {"notes", search_notes(job.model, question.space, question.defaults)},
              {"considered", result.considered},
              {"infeasible", Json::object()},
              {"infeasible_sources", Json::object()},
              {"infeasible_examples", Json::object()},
              {"out_of_memory", result.out_of_memory},
              {"bounded_out", result.bounded_out},
              {"simulated", result.simulated}};
  for (const Refusal& refusal : refusals_of(job, question.space, result.infeasible)) {
    object["infeasible"][refusal.rule] = refusal.count;
    object["infeasible_sources"][refusal.rule] =
        source_of_refusal(job, question.space, refusal.rule);
    object["infeasible_examples"][refusal.rule] =
        refusal.example.empty() ? Json(nullptr) : Json(refusal.example);
  }
  Json& plans = object["plans"] = Json::array();
  for (std::size_t i = 0; i < found.plans.size(); ++i) {
    Json plan = report(job, found.plans[i]);
    plan["tie"] = is_tie(found, i);
    plans.push_back(std::move(plan));
  }
  Json& pareto = object["pareto"] = Json::array();
  for (const RankedPlan& plan : result.pareto) pareto.push_back(ranked_json(job, plan));
  Json& untried = object["untried"] = Json::array();
  for (const auto& [ranked, written] : found.untried) {
    Json one = ranked_json(job, ranked);
    one["change"] = change_text(found.plans.front().plan, ranked.plan);
    one["written"] = written;
    untried.push_back(std::move(one));
  }
  if (found.plans.empty()) {
    object["smallest"] = result.smallest ? ranked_json(job, *result.smallest) : Json(nullptr);
    object["would_fit"] = advice_json(job, what_makes_job_fit(job, question.space));
  }
  if (question.timing) object["elapsed_s"] = found.elapsed_s;
  return object;
}

namespace {

// ---- of a step of --algorithm ----

// The step that a combination of a search is.
RlStep step_of(const RlJob& job, const RlPlan& plan) {
  RlStep step{job, plan.layout};
  step.job.rollout_gpus = plan.rollout_gpus;
  return step;
}

// A plan file of the best update, with the step around it.
void write_best(const Job& job, const RlJob& rl_job, const RlPlan& best, const std::string& path,
                const Console& console) {
  Json file = report(job, ask(job, best.plan));
  const RlStep step = step_of(rl_job, best);
  file["step"] = rl_file_json(step, rl_json(step, best.estimate));
  embed_job(file, job);
  write_output(path, answer_text("plan", file), console);
}

Json to_json(Job& job, const SearchQuestion& question, const RlJob& rl_job,
             const RlSearchResult& result) {
  Json object{{"model", job.model.name},
              {"hardware", job.hardware.name},
              {"framework", to_word(job.framework)},
              {"gpus", question.space.gpus},
              {"seq_len", question.space.job.seq_len},
              {"precision", to_word(question.space.job.precision)},
              {"considered", result.considered},
              {"layouts", result.layouts},
              {"splits", result.splits},
              {"combined", result.combined},
              {"steps", Json::array()},
              {"misfits", Json::array()}};
  for (const auto& [list, key] :
       {std::pair{&result.plans, "steps"}, std::pair{&result.misfits, "misfits"}}) {
    for (const RlPlan& plan : *list) {
      Json step = rl_json(step_of(rl_job, plan), plan.estimate);
      step["plan"] = plan_to_json(plan.plan);
      step["short"] = line_of(job, plan.plan);
      object[key].push_back(std::move(step));
    }
  }
  return object;
}

// What keeps the best from being written by the framework that was asked for: nothing that can be
// fits.
std::string unwritten_text(const Job& job, const RlJob& rl_job, const RlPlan& best) {
  const auto framework = files_of(job, best.plan);
  if (!framework || framework != job.choices.files) return "";
  const RlStep step = step_of(rl_job, best);
  const Json config = config_of(job);
  const Subject subject{
      job.model, config,        best.plan, job.framework, job.hardware.link.gpus_per_node,
      &step,     job.cost.get()};
  const auto limits = limits_of(job.hardware, best.plan.world(), job.cost->kinds());
  const auto reasons = why_inexpressible(*framework, subject, limits);
  if (reasons.empty()) return "";
  return wrapped(fmt::format("note: `qplan emit --framework {}` has no words for this step: {}",
                             to_word(*framework), reasons.front().message),
                 page().text, 6);
}

void print_text(const Job& job, const RlJob& rl_job, bool open, const RlSearchResult& result,
                std::ostream& out) {
  out << model_line(job) << rl_job_text(rl_job, open) << '\n';
  if (result.plans.empty()) {
    out << "Nothing fits.\n";
    if (!result.misfits.empty()) {
      const RlPlan& nearest = result.misfits.front();
      out << wrapped("The fastest that does not: " + nearest.estimate.misfit + ".", page().text)
          << rl_ranking_text(job, rl_job, {nearest});
    }
    return;
  }
  out << rl_ranking_text(job, rl_job, result.plans) << "\nbest:\n"
      << phases_text(result.plans.front().estimate)
      << unwritten_text(job, rl_job, result.plans.front()) << '\n'
      << wrapped(fmt::format("{} training plans and {} rollout layouts considered over {} way{} to "
                             "share the GPUs, {} combinations priced whole.",
                             grouped(result.considered), grouped(result.layouts), result.splits,
                             result.splits == 1 ? "" : "s", grouped(result.combined)),
                 page().text);
}

Exit search_steps(Job& job, SearchQuestion& question, const RlJob& rl_job, const Console& console) {
  if (!job.kinds.empty()) {
    throw Error("reinforcement learning is planned on GPUs of one kind; name one with --hardware");
  }
  refuse_batch(question.words.contains("global_batch_size"));
  question.words.try_emplace("seq_len", std::to_string(longest_of(rl_job)));
  set_job_words(question.space, question.words, job.model, job.recipe(), job.gpus);
  // What no plan can mend is said before any is looked for; who makes answers may be.
  const RolloutLayout said = rollout_layout_of(question.rl);
  RlJob whole = rl_job;
  if (whole.colocated()) whole.staleness = 0;
  const auto faults = rl_faults(whole, job.model, question.space.job, said, job.gpus);
  if (!faults.empty()) throw Error(fmt::format("the step cannot be: {}", fmt::join(faults, "; ")));
  const Stopwatch stopwatch;
  RlSearchOptions options;
  options.search.top = static_cast<int>(question.top);
  options.search.threads = static_cast<int>(question.threads);
  options.split = !question.rl.rollout_gpus.has_value();
  if (!question.rl.rollout.empty()) options.layouts.push_back(said);
  check_images(job, question.space.job.seq_len);
  const RlSearchResult result =
      search_rl_offered(*job.cost, rl_job, question.space, options,
                        files_of(job, question.space.job), config_of(job));
  const double elapsed_s = stopwatch.elapsed_s();
  const Console beside = beside_output(question.output, console);
  if (!question.output.empty() && !result.plans.empty()) {
    const std::int64_t all = std::exchange(job.gpus, result.plans.front().plan.world());
    write_best(job, rl_job, result.plans.front(), question.output, console);
    job.gpus = all;
  }
  if (question.json) {
    Json object = to_json(job, question, rl_job, result);
    if (question.timing) object["elapsed_s"] = elapsed_s;
    beside.out << answer_text("search_steps", object);
  } else {
    print_text(job, rl_job, options.split, result, beside.out);
    if (question.timing) print(beside.out, "elapsed {}\n", human_seconds(Seconds(elapsed_s)));
  }
  return result.plans.empty() ? Exit::nothing_fits : Exit::done;
}

void add_options(CommandLine& line, SearchQuestion& question) {
  add_model_options(line, question.choices, &question.frameworks);
  add_job_words(line, question.words, {"precision"});
  add_job_word_list(line, "precision", question.precisions);
  add_cluster_options(line, question.choices, {.several = &question.hardware});
  line.option({"--prices", "FILE",
               "of several machines: a CSV of hardware, usd_per_gpu_hour and source", ""},
              set_text(question.prices));
  add_constraints(line, question.space);
  add_rl_options(line, question.rl);
  line.group("Output");
  line.option({"--top", "COUNT", "plans to show", "10"}, set_whole(question.top, 1, 1000));
  line.option({"--objective", "GOAL",
               "what is best: tokens (a second), cost (a token), gpus (fewest that fit)", "tokens"},
              set_word(question.objective));
  line.option({"--threads", "COUNT", "threads that search", "all cores"},
              set_whole(question.threads, 1, 1024));
  line.flag("--pareto", "also the plans that need less memory", question.pareto);
  line.flag("--json", "the same as JSON", question.json);
  line.flag("--timing", "also how long the search took", question.timing);
  line.option({"-o,--output", "FILE", "file for the best plan", ""}, set_text(question.output));
}

}  // namespace

Exit run_search(const Args& args, const Console& console) {
  SearchQuestion question;
  CommandLine line(
      "search", "The best parallel plans for a model on N GPUs, and why others lost.",
      "qplan search --model llama3-70b --gpus 64 --pp 2,4,8 --zero 0..1 -o plan.json\n"
      "         qplan search --model llama3-70b --gpus 64 --hardware h100-sxm,h200-sxm "
      "--framework megatron,fsdp2");
  add_options(line, question);
  if (!line.parse(args, console.out)) return Exit::done;
  refuse_one_stream(question.output, question.json);

  if (question.precisions.size() == 1) question.words["precision"] = question.precisions.front();
  if (question.has_lists()) {
    if (question.rl.asked()) {
      throw Error("--algorithm takes one machine, one framework and one precision at a time");
    }
    return search_lists(question, console);
  }
  if (!question.prices.empty()) {
    throw Error("--prices is of several machines, which --hardware lists; --price is of one");
  }
  const auto job = make_job(question.choices);
  if (job->gpus == 0) throw Error(kGpusMissing);
  RlJob rl_job = rl_job_of(question.rl);
  rl_job.change_of_hands = change_of_hands_in(job->choices.files);
  if (question.rl.asked()) return search_steps(*job, question, rl_job, console);
  question.defaults =
      set_job_words(question.space, question.words, job->model, job->recipe(), job->gpus);
  const FoundPlans found = find_plans(*job, question, console);
  const Console beside = beside_output(question.output, console);
  if (!question.output.empty() && !found.plans.empty()) {
    write_plan(*job, found.plans.front(), question.output, console);
  }
  if (question.json) {
    beside.out << answer_text("search", search_json(*job, question, found));
  } else {
    print_text(*job, question, found, beside.out);
  }
  return found.plans.empty() ? Exit::nothing_fits : Exit::done;
}

}  // namespace qplan
