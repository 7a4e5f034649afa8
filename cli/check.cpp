// `qplan check`: what is wrong with somebody's configuration, how fast it would be, and what would
// be better.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <span>
#include <sstream>
#include <system_error>

#include "cli/advice.h"
#include "cli/answer.h"
#include "cli/check_files.h"
#include "cli/check_formats.h"
#include "cli/commands.h"
#include "cli/files_plan.h"
#include "cli/job_defaults.h"
#include "cli/output.h"
#include "cli/page.h"
#include "cli/print.h"
#include "cli/report.h"
#include "cli/rl.h"
#include "models/error.h"
#include "planner/frameworks/fix.h"
#include "planner/frameworks/written_plans.h"

namespace qplan {
namespace {

namespace fs = std::filesystem;

struct CheckWords : FilesQuestion {
  std::vector<std::string> files;
  std::string fix, sarif;
  CheckFormat format = CheckFormat::text;
  bool best = true, each = false, skip_unknown = false;
};

struct FoundInFiles {
  std::vector<ConfigText> files;  // of one job
  Checked checked;
  std::shared_ptr<Job> job;  // in the implementation that the files speak to
  std::optional<Answer> yours;
  std::optional<RlEstimate> step;  // of a job that makes the answers it is trained on
  std::unique_ptr<Job> best_job;   // the same, or another where that one cannot train the model
  std::optional<Answer> best;
  std::optional<RlStep> best_step_asked;  // of such a job: its own with the engines that were found
  std::optional<RlEstimate> best_step;
  bool searched = false;
  std::vector<Advice> would_fit;  // where no plan does
  FixedFiles fixed;               // what --fix writes
  bool wants_fix = false;
  std::vector<std::string> written;  // corrected copies
};

// A file that was named and that no framework reads.
struct SkippedFile {
  std::string file, reason;
};

struct CheckAnswer {
  std::vector<FoundInFiles> jobs;
  std::vector<SkippedFile> skipped;
  [[nodiscard]] std::int64_t count(Severity severity) const {
    std::int64_t sum = 0;
    for (const FoundInFiles& job : jobs) sum += job.checked.count(severity);
    return sum;
  }
};

constexpr std::string_view kNoPlanFits = "no_plan_fits";

// Why --fix leaves a finding; empty: it corrects it. Of the job no file says anything.
std::string why_stands(const FoundInFiles& found, const Finding& finding) {
  if (finding.rule == kNoPlanFits) return "no text of these files makes the job smaller";
  return why_left(found.fixed, finding);
}

void say_nothing_fits(FoundInFiles& found, const Job& job, const SearchSpace& space,
                      const RankedPlan& smallest) {
  if (!found.would_fit.empty()) return;  // said of another implementation
  found.checked.findings.insert(
      found.checked.findings.begin(),
      {Severity::error,
       std::string(kNoPlanFits),
       {"the job", 0},
       fmt::format("no plan trains {} on {} x {} by {}: the one that needs least has {} ({})",
                   job.model.name, job.gpus, job.hardware.name, to_word(job.framework),
                   excess_text(job, smallest), to_string(smallest.plan)),
       "more GPUs, or one of the changes below",
       "qplan search"});
  found.would_fit = what_makes_job_fit(job, space);
}

// The best plan for the same sequences, searched where the files' implementation has any.
void find_best(FoundInFiles& found, const JobChoices& choices) {
  found.searched = true;
  const ParallelPlan& plan = found.checked.plan;
  for (const RecipeKind recipe : {found.checked.recipe, RecipeKind::megatron}) {
    JobChoices same = choices;
    same.framework = recipe;
    auto job = make_job(same);
    const SearchSpace space = space_of_job(plan, job->gpus);
    SearchOptions options;
    options.top = 1;
    options.alone = false;  // no step of it makes answers, or none is read
    // The job's own framework runs the plan that is recommended, or another is named.
    auto framework = files_of(*job, space.job);
    const auto& of_files = found.checked.framework;
    if (of_files && recipe_for(*of_files, recipe) == recipe) framework = of_files;
    const Json config = config_of(*job);
    const SearchResult result = search_written(*job->cost, space, options, framework, config);
    if (result.plans.empty()) {
      if (result.smallest) say_nothing_fits(found, *job, space, *result.smallest);
      continue;
    }
    found.best = ask(*job, result.plans.front().plan);
    found.best_job = std::move(job);
    return;
  }
}

// Who trains how, and on which engines answers are made, of the same step on the same GPUs: those
// that the files set aside stay so.
void find_best_step(FoundInFiles& found, const JobChoices& choices) {
  const Checked& checked = found.checked;
  const RlStep& own = *checked.step;
  JobChoices all = choices;
  all.framework = checked.recipe;
  auto job = make_job(all);
  RolloutLayout any = own.layout;  // another one may be in its place
  any.tp = any.dp = any.ep = 1;
  if (!rl_faults(own.job, job->model, checked.plan, any, job->gpus).empty()) return;
  found.searched = true;
  const Json config = config_of(*job);
  RlSearchOptions options;
  options.search.top = 1;
  options.split = false;
  options.find = [&](const SearchSpace& space, const SearchOptions& how) {
    return search_written(*job->cost, space, how, checked.framework, config);
  };
  const std::int64_t engines_on = own.job.colocated() ? job->gpus : own.job.rollout_gpus;
  if (own.job.generates()) {
    options.layouts = rollout_layouts(job->model, engines_on, own.layout);
  }
  const RlSearchResult result =
      search_rl(*job->cost, own.job, space_of_job(checked.plan, job->gpus), options);
  if (result.plans.empty()) return;
  const RlPlan& best = result.plans.front();
  const bool slower =
      found.step && found.step->fits && found.step->step_time <= best.estimate.step_time;
  found.best_step_asked = own;
  if (!slower) {
    found.best_step_asked->layout = best.layout;
    found.best_step_asked->job.rollout_gpus = best.rollout_gpus;
  }
  found.best_step = slower ? *found.step : best.estimate;
  const ParallelPlan plan = slower ? update_plan(own.job, job->model, checked.plan) : best.plan;
  job->gpus = plan.world();
  found.best = ask(*job, plan);
  found.best_job = std::move(job);
}

std::string_view with_s(std::int64_t count) {
  return count == 1 ? "" : "s";
}

// Why a plan that does not fit may still run; empty: it does not.
std::string doubt_of(const Checked& checked, const Infeasible& reason, const Estimate& estimate,
                     const HardwareProfile& hardware) {
  if (checked.takes_less) return "; the job needs less by what is assumed below";
  if (reason.rule != "out_of_memory") return "";
  const StageMemory& stage = estimate.memory.worst_stage();
  // Shorter sequences keep fewer activations; states are what they are.
  const Bytes states = stage.weights + stage.gradients + stage.optimizer;
  if (checked.shorter && !(states > estimate.capacity)) {
    return "; sequences may be shorter than is assumed below";
  }
  // What a plan leaves free is for the allocator, which may get along with less.
  if (stage.device > hardware.gpu.usable_memory) return "";
  return fmt::format("; the device has {}, and it may just run",
                     human_bytes(hardware.gpu.usable_memory));
}

// A plan that the rules allow and the device does not.
void add_memory_finding(Checked& checked, const Answer& answer, const HardwareProfile& hardware) {
  for (const Infeasible& reason : answer.infeasible) {
    if (!answer.estimate) return;  // the rules said it already
    const std::string doubt = doubt_of(checked, reason, *answer.estimate, hardware);
    checked.findings.insert(checked.findings.begin(),
                            {doubt.empty() ? Severity::error : Severity::warning,
                             std::string(reason.rule),
                             {"the plan", 0},
                             reason.message + doubt,
                             "see the plan below",
                             "qplan predict"});
  }
}

// The phases of a step, each on its GPUs: those that make answers, too. Nothing: the step cannot
// be, which findings say.
std::optional<RlEstimate> estimate_step(const Job& job, const Checked& checked) {
  if (!checked.step) return std::nullopt;
  const auto& [asked, layout] = *checked.step;
  const std::int64_t gpus = job.gpus + asked.rollout_gpus;
  if (!rl_faults(asked, job.model, checked.plan, layout, gpus).empty()) return std::nullopt;
  if (!ask(job, update_plan(asked, job.model, checked.plan)).estimate) return std::nullopt;
  return evaluate_rl(*job.cost, asked, checked.plan, layout, gpus);
}

// A step that cannot be, where no finding says so yet; or one of which some phase does not fit the
// device, or what waits for its turn not the host.
void add_step_findings(Checked& checked, const Job& job) {
  const auto& [asked, layout] = *checked.step;
  const bool known = checked.has(Severity::error);
  for (const std::string& fault :
       rl_faults(asked, job.model, checked.plan, layout, job.gpus + asked.rollout_gpus)) {
    if (known || !step_is_job(checked)) break;
    checked.findings.insert(checked.findings.begin(), {Severity::error,
                                                       "step_faults",
                                                       {"the step", 0},
                                                       fault,
                                                       "see the step below",
                                                       "qplan predict"});
  }
  const std::optional<RlEstimate> e = estimate_step(job, checked);
  if (e && e->fits && e->longest > e->capacity) {
    checked.findings.push_back(
        {Severity::note,
         "long_answers_memory",
         {"the step", 0},
         fmt::format("the update fits with answers of the length that is assumed, and takes {} of "
                     "the {} that may be filled once all of a micro-batch are of the longest ({} "
                     "tokens): it runs out of memory after some steps if answers grow",
                     human_bytes(e->longest), human_bytes(e->capacity), e->longest_tokens),
         fmt::format("fewer answers a micro-batch, or micro-batches by tokens, of {} at most",
                     e->tokens_that_fit),
         "qplan predict"});
  }
  if (!e || e->fits) return;
  // Formats of slime's engines (int4, fp8) are the checkpoint's, which no argument says.
  const bool sure = !checked.takes_less && step_is_job(checked);
  checked.findings.insert(
      checked.findings.begin(),
      {sure ? Severity::error : Severity::warning,
       "step_memory",
       {"the step", 0},
       sure ? e->misfit : e->misfit + "; the job needs less by what is assumed below",
       "see the phases below",
       "qplan predict"});
}

// What check says of a job's files, the memory of their plan included.
class FileJudge {
 public:
  FileJudge(const CheckWords& question, const Job& job) : question_(question), job_(job) {}

  Checked operator()(std::span<const ConfigText> files) {
    Checked checked = check_files(question_, job_, files);
    if (speaks_of_plan(checked)) {
      const Job& job = *job_of(checked);
      const Answer answer = ask(job, checked.plan);
      if (!step_is_job(checked)) add_memory_finding(checked, answer, job.hardware);
      // Of slime's step what checks of its arguments say comes first.
      const bool judged = step_is_job(checked) || !checked.has(Severity::error);
      if (checked.step && answer.estimate && judged) {
        add_step_findings(checked, job);
      }
    }
    return checked;
  }

  // The same job in the implementation that files speak to, on the GPUs that train.
  std::shared_ptr<Job> job_of(const Checked& checked) {
    std::shared_ptr<Job>& job = jobs_[checked.recipe];
    if (job == nullptr) job = job_of_files(question_, checked);
    return job;
  }

 private:
  const CheckWords& question_;
  const Job& job_;
  std::map<RecipeKind, std::shared_ptr<Job>> jobs_;
};

void write_fixed(FoundInFiles& found, const std::vector<ConfigText>& files,
                 const std::string& folder) {
  std::error_code problem;
  // All of them or none.
  struct Copy {
    std::string of;
    const std::string* text = nullptr;
  };
  std::map<fs::path, Copy> copies;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string& text = found.fixed.files[i].text;
    if (text == files[i].text) continue;
    const fs::path path = fs::path(folder) / fs::path(files[i].name).filename();
    if (fs::exists(path, problem)) {
      throw Error(fmt::format("{} exists; give another folder to --fix", path.string()));
    }
    if (!copies.emplace(path, Copy{files[i].name, &text}).second) {
      throw Error(fmt::format("two files with corrections are called {}; check them one by one",
                              path.filename().string()));
    }
  }
  if (copies.empty()) return;
  fs::create_directories(folder, problem);
  if (problem) throw Error(fmt::format("--fix {} cannot be made: {}", folder, problem.message()));
  for (const auto& [path, copy] : copies) {
    write_file_atomically(path.string(), *copy.text);
    // A script stays one that can be started.
    const fs::file_status status = fs::status(copy.of, problem);
    if (!problem) fs::permissions(path, status.permissions(), problem);
    found.written.push_back(path.string());
  }
}

// ---- text ----

void print_findings(const FoundInFiles& found, std::ostream& out) {
  const Checked& checked = found.checked;
  for (const Finding& finding : checked.findings) {
    out << wrapped(fmt::format("{}: {}: {} [{}]", to_string(finding.place),
                               to_word(finding.severity), finding.message, finding.rule),
                   page().text, 4);
    if (!finding.instead.empty()) {
      out << wrapped("    instead: " + finding.instead, page().text, 13);
    }
    if (!finding.source.empty()) out << wrapped("    source:  " + finding.source, page().text, 13);
    if (!found.wants_fix) continue;
    const std::string why = why_stands(found, finding);
    if (finding.severity == Severity::note && finding.fix.empty() && !why.empty()) continue;
    out << wrapped("    --fix:   " + (why.empty() ? "corrected" : "left: " + why), page().text, 13);
  }
  const auto errors = checked.count(Severity::error), warnings = checked.count(Severity::warning),
             notes = checked.count(Severity::note);
  if (errors + warnings + notes == 0) {
    out << "No findings.\n";
    return;
  }
  print(out, "\n{} error{}, {} warning{}, {} note{}\n", errors, with_s(errors), warnings,
        with_s(warnings), notes, with_s(notes));
}

std::string speed_text(const Job& job, const Answer& answer) {
  if (!answer.estimate) return "cannot run";
  const Estimate& e = *answer.estimate;
  return fmt::format("{} of {} on the worst GPU{}; {} a step, {} tokens/s a GPU, MFU {}",
                     human_bytes(e.memory.worst_stage().device), human_bytes(e.capacity),
                     answer.feasible() ? "" : " (does not fit)", human_seconds(e.step_time),
                     significant(e.tokens_per_s_per_gpu, 4), mfu_text(job, answer));
}

void print_best_step(const FoundInFiles& found, std::ostream& out) {
  const RlStep& asked = *found.best_step_asked;
  const bool same = found.step && found.step->step_time == found.best_step->step_time;
  if (same) {
    out << "best      the same: no step that was found is faster\n";
    return;
  }
  out << wrapped(fmt::format("best      {} (by {})", to_string(found.best->plan),
                             to_word(found.best_job->framework)),
                 page().text, 10);
  if (asked.job.generates()) {
    out << wrapped(fmt::format("          answers by engines of {}", to_string(asked.layout)),
                   page().text, 10);
  }
  out << phases_text(*found.best_step);
  if (found.step && found.step->fits) {
    out << fmt::format("          {} times as fast as this step\n",
                       significant(found.step->step_time / found.best_step->step_time));
  }
}

void print_job(const FoundInFiles& found, std::ostream& out) {
  const Checked& checked = found.checked;
  for (const std::string& path : found.written) print(out, "corrected copy: {}\n", path);
  if (found.wants_fix && found.written.empty()) out << "nothing was corrected\n";
  if (!found.yours) return;
  out << '\n' << model_line(*found.job);
  for (const std::string& sentence : checked.assumed)
    out << wrapped("assumed: " + sentence, page().text, 9);
  out << wrapped("this job  " + to_string(checked.plan), page().text, 10)
      << (found.step
              ? std::string()
              : wrapped("          " + speed_text(*found.job, *found.yours), page().text, 10));
  if (found.step) out << rl_job_text(checked.step->job) << phases_text(*found.step);
  if (!found.best && !found.searched) return;
  if (found.best_step) return print_best_step(found, out);
  if (!found.best) {
    out << "best      no plan fits these GPUs";
    out << (found.would_fit.empty() ? "\n" : "; one would with:\n" + advice_text(found.would_fit));
    return;
  }
  if (found.best->plan == checked.plan && found.best_job->framework == found.job->framework) {
    out << "best      the same: no plan that was found is faster\n";
    return;
  }
  const std::string_view recipe = to_word(found.best_job->framework);
  out << wrapped(fmt::format("best      {} (by {})", to_string(found.best->plan), recipe),
                 page().text, 10)
      << wrapped("          " + speed_text(*found.best_job, *found.best), page().text, 10);
  if (found.yours->feasible()) {
    const double ratio = found.yours->estimate->step_time / found.best->estimate->step_time;
    const bool tie = cannot_be_told(*found.best, *found.yours);
    out << fmt::format("          {} times as fast as this job{}\n", significant(ratio),
                       tie ? ", less than the prediction can tell" : "");
  }
}

void print_text(const FoundInFiles& found, std::ostream& out) {
  print_findings(found, out);
  print_job(found, out);
}

// Of several jobs each under the name of its file; of files that are none nothing is said.
void print_text(const CheckAnswer& answer, const CheckWords& question, std::ostream& out) {
  for (std::size_t i = 0; i < answer.jobs.size(); ++i) {
    const FoundInFiles& found = answer.jobs[i];
    if (question.each) print(out, "{}{}:\n", i > 0 ? "\n" : "", found.files.front().name);
    print_text(found, out);
  }
}

// ---- other programs ----

// A line without the space around it; line 0 is none.
std::string line_text(const std::string& text, int line) {
  std::istringstream lines(text);
  std::string found;
  for (int i = 0; i < line && std::getline(lines, found);) ++i;
  if (line == 0) return "";
  return std::string(trimmed(found));
}

// Where findings are shown: a finding of the plan or the job as a whole on the job's first file.
std::vector<ShownFinding> shown_findings(const CheckAnswer& answer) {
  std::vector<ShownFinding> shown;
  for (const FoundInFiles& found : answer.jobs) {
    for (const Finding& finding : found.checked.findings) {
      const auto file =
          std::find_if(found.files.begin(), found.files.end(),
                       [&](const ConfigText& f) { return f.name == finding.place.file; });
      const bool known = file != found.files.end();
      shown.push_back({finding, why_stands(found, finding).empty(),
                       known ? file->name : found.files.front().name,
                       known ? line_text(file->text, finding.place.line) : ""});
    }
  }
  return shown;
}

// ---- JSON (docs/check.md) ----

Json to_json(const FoundInFiles& found) {
  const Checked& checked = found.checked;
  Json findings = Json::array();
  for (const Finding& f : checked.findings) {
    const std::string why = why_stands(found, f);
    findings.push_back({{"severity", to_word(f.severity)},
                        {"rule", f.rule},
                        {"file", f.place.file},
                        {"line", f.place.line > 0 ? Json(f.place.line) : Json(nullptr)},
                        {"message", f.message},
                        {"instead", f.instead.empty() ? Json(nullptr) : Json(f.instead)},
                        {"source", f.source.empty() ? Json(nullptr) : Json(f.source)},
                        {"fixable", why.empty()},
                        {"not_fixable_because", why.empty() ? Json(nullptr) : Json(why)}});
  }
  Json object{{"framework", checked.framework ? Json(to_word(*checked.framework)) : Json(nullptr)},
              {"errors", checked.count(Severity::error)},
              {"warnings", checked.count(Severity::warning)},
              {"notes", checked.count(Severity::note)},
              {"findings", std::move(findings)},
              {"assumed", checked.assumed},
              {"fixed_files", found.written}};
  object["this_job"] = found.yours ? report(*found.job, *found.yours) : Json(nullptr);
  object["step"] = found.step ? rl_json(*checked.step, *found.step) : Json(nullptr);
  object["would_fit"] = advice_json(found.would_fit);
  object["best"] = found.best ? report(*found.best_job, *found.best) : Json(nullptr);
  object["best_step"] =
      found.best_step ? rl_json(*found.best_step_asked, *found.best_step) : Json(nullptr);
  return object;
}

Json skipped_json(const CheckAnswer& answer) {
  Json list = Json::array();
  for (const SkippedFile& skipped : answer.skipped) {
    list.push_back({{"file", skipped.file}, {"reason", skipped.reason}});
  }
  return list;
}

Json jobs_json(const CheckAnswer& answer) {
  Json jobs = Json::array();
  for (const FoundInFiles& found : answer.jobs) {
    std::vector<std::string> names;
    for (const ConfigText& file : found.files) names.push_back(file.name);
    jobs.push_back({{"files", names}, {"answer", versioned("check", to_json(found))}});
  }
  return {{"errors", answer.count(Severity::error)},
          {"warnings", answer.count(Severity::warning)},
          {"notes", answer.count(Severity::note)},
          {"jobs", std::move(jobs)},
          {"skipped", skipped_json(answer)}};
}

// ---- what is asked ----

// What may be said of a job on the command line and in a remark of its files.
void add_job_options(CommandLine& line, CheckWords& question) {
  line.group("Model");
  line.option({"--model", "MODEL", "built-in name, or path of a Hugging Face config.json",
               "what the files describe or name"},
              set_given(question.choices.model, set_name, model_names()));
  add_read_as_option(line, question.choices.read_as);
  line.option({"--seq-len", "TOKENS", "tokens of a sequence, where no file says", kDefaultLength},
              set_given(question.seq_len, set_whole, std::int64_t{1}, std::int64_t{1} << 30));
  line.option({"--global-batch-size", "SEQUENCES", "sequences a step, where no file says", ""},
              set_given(question.global_batch_size, set_whole, std::int64_t{1}, kMostSequences));
  line.option(
      {"--micro-batch-size", "SEQUENCES", "sequences a rank handles, where no file says", "1"},
      set_given(question.micro_batch_size, set_whole, std::int64_t{1}, kMostSequences));
  add_cluster_options(line, question.choices);
}

void read_remark(CheckWords& question, const std::vector<ConfigText>& files) {
  const JobRemark remark = job_remark(files);
  if (remark.words.empty()) return;
  CommandLine line("check", "", "");
  add_job_options(line, question);
  std::ostringstream help;
  try {
    if (line.parse(remark.words, help)) return;
    throw Error("a remark of a file gives a job's options, and asks for no help");
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", to_string(remark.place), error.what()));
  }
}

// ---- judging ----

// One job's files. `question` is the job's own.
FoundInFiles judge_job(CheckWords question, std::vector<ConfigText> files) {
  read_remark(question, files);
  if (!question.choices.gpus) {
    question.choices.gpus = gpus_of_files(files);
    if (question.choices.gpus) {
      question.assumed.push_back(
          fmt::format("{} GPUs, as the files start them", *question.choices.gpus));
    }
  }
  if (!question.choices.gpus) throw Error("--gpus is missing; say how many GPUs the job has");
  if (!question.choices.model) read_model_of_files(question, files);
  FoundInFiles found;
  found.files = std::move(files);
  found.job = make_job(question.choices);
  const std::shared_ptr<Job> asked = found.job;
  FileJudge judge(question, *asked);
  found.fixed = fix(found.files, std::ref(judge));
  found.checked = found.fixed.before;
  found.wants_fix = !question.fix.empty();
  if (speaks_of_plan(found.checked)) {
    found.job = judge.job_of(found.checked);
    found.yours = ask(*found.job, found.checked.plan);
    if (found.checked.step && found.yours->estimate) {
      found.step = estimate_step(*found.job, found.checked);
    }
    if (question.best) {
      step_is_job(found.checked) ? find_best_step(found, question.choices)
                                 : find_best(found, question.choices);
    }
  }
  if (found.wants_fix) write_fixed(found, found.files, question.fix);
  return found;
}

// A job of which too little is known to judge it; of several that stops none of the others.
FoundInFiles not_judged(std::vector<ConfigText> files, const std::string& why) {
  FoundInFiles found;
  found.checked.findings = {{Severity::note,
                             "not_judged",
                             {files.front().name, 0},
                             "this job is not judged: " + why,
                             "say it on the command line, or in a remark of the file: # qplan: "
                             "--model NAME --gpus COUNT",
                             "qplan check"}};
  found.files = std::move(files);
  found.fixed.before = found.fixed.checked = found.checked;
  found.fixed.left = {{found.checked.findings.front(), "nothing in the file is wrong"}};
  return found;
}

bool holds(const std::vector<ConfigText>& files, const std::string& name) {
  std::error_code no;
  return std::any_of(files.begin(), files.end(), [&](const ConfigText& file) {
    return file.name == name || fs::equivalent(file.name, name, no);
  });
}

// The files named, each with what it reads: those that another one reads are part of its job.
std::vector<std::vector<ConfigText>> jobs_of_each(std::vector<std::vector<ConfigText>> each) {
  std::vector<std::vector<ConfigText>> jobs;
  for (std::size_t i = 0; i < each.size(); ++i) {
    bool part = false;
    for (std::size_t j = 0; j < each.size() && !part; ++j) {
      if (i == j || !holds(each[j], each[i].front().name)) continue;
      part = j < i || !holds(each[i], each[j].front().name);  // of two that read each other, one
    }
    if (!part) jobs.push_back(each[i]);
  }
  return jobs;
}

CheckAnswer judge(const CheckWords& question) {
  CheckAnswer answer;
  std::vector<std::string> names;
  std::vector<std::vector<ConfigText>> each;
  for (const std::string& name : question.files) {
    if (question.each || question.skip_unknown) {
      std::error_code no;
      std::vector<ConfigText> files;
      std::string reason;
      try {
        files = read_check_files({name});
        reason = why_no_config(files);
      } catch (const Error& error) {
        if (!question.skip_unknown || !fs::exists(name, no)) throw;
        reason = error.what();
      }
      if (question.skip_unknown && !reason.empty()) {
        answer.skipped.push_back({name, reason});
        continue;
      }
      each.push_back(std::move(files));
    }
    names.push_back(name);
  }
  if (!question.each) {
    if (!names.empty()) answer.jobs.push_back(judge_job(question, read_check_files(names)));
    return answer;
  }
  for (std::vector<ConfigText>& files : jobs_of_each(std::move(each))) {
    try {
      answer.jobs.push_back(judge_job(question, files));
    } catch (const Error& error) {
      if (!question.skip_unknown) throw;
      answer.jobs.push_back(not_judged(std::move(files), error.what()));
    }
  }
  return answer;
}

void print_answer(const CheckAnswer& answer, const CheckWords& question, std::ostream& out) {
  switch (question.format) {
    case CheckFormat::text:
      return print_text(answer, question, out);
    case CheckFormat::json: {
      if (question.each || answer.jobs.empty()) {
        out << answer_text("check_each", jobs_json(answer));
        return;
      }
      Json json = to_json(answer.jobs.front());
      json["skipped"] = skipped_json(answer);
      out << answer_text("check", json);
      return;
    }
    case CheckFormat::sarif:
      out << sarif_text(shown_findings(answer));
      return;
    case CheckFormat::github:
      out << github_text(shown_findings(answer));
      for (const FoundInFiles& found : answer.jobs) print_job(found, out);
      return;
  }
}

}  // namespace

Exit run_check(const Args& args, const Console& console) {
  CheckWords question;
  bool no_best = false, json = false;
  CommandLine line("check",
                   "What is wrong with a configuration, the plan it amounts to, and a better one.",
                   "qplan check ds_config.json train.sh --model qwen3-30b-a3b --gpus 64\n"
                   "         git diff -z --name-only main | xargs -0 qplan check --each "
                   "--skip-unknown --format github");
  line.positionals(
      "FILE",
      "the files of one job: ds_config.json, Megatron's arguments or launch "
      "script, accelerate's, LLaMA-Factory's, axolotl's or NeMo AutoModel's yaml, "
      "slime's, ms-swift's or TRL's script, verl's script, NeMo-RL's yaml, torchtitan's function",
      question.files);
  line.group("Files");
  line.flag("--each", "each file is a job of its own, but for those that another one reads",
            question.each);
  line.flag("--skip-unknown", "files that no framework reads are left out, without a word",
            question.skip_unknown);
  add_job_options(line, question);
  line.group("Output");
  line.option({"--fix", "DIR", "folder to write corrected copies to", ""}, set_text(question.fix));
  line.flag("--no-best", "findings and this job's plan alone: no search for a better one", no_best);
  line.option(
      {"--format", "FORMAT",
       "text, json, sarif (SARIF 2.1.0), or github (annotations of a pull request)", "text"},
      set_word(question.format));
  line.flag("--json", "the same as --format json", json);
  line.option({"--sarif", "FILE", "file for SARIF besides", ""}, set_text(question.sarif));
  if (!line.parse(args, console.out)) return Exit::done;
  refuse_standard_output("--fix", question.fix);
  if (question.sarif == "-") throw Error("--format sarif writes SARIF to standard output");
  if (question.files.empty()) {
    throw Error("check needs files; for example `qplan check ds_config.json --model M --gpus N`");
  }
  if (question.each && !question.fix.empty()) {
    throw Error("--fix writes the files of one job; leave --each out");
  }
  if (json) question.format = CheckFormat::json;
  question.best = !no_best;
  const CheckAnswer answer = judge(question);
  if (!question.sarif.empty()) {
    write_file_atomically(question.sarif, sarif_text(shown_findings(answer)));
  }
  print_answer(answer, question, console.out);
  return answer.count(Severity::error) > 0 ? Exit::nothing_fits : Exit::done;
}

}  // namespace qplan
