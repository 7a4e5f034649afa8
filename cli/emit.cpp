// `qplan emit`: a plan in a framework's own files.

#include "planner/frameworks/emit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <system_error>

#include "cli/answer.h"
#include "cli/asked_plan.h"
#include "cli/commands.h"
#include "cli/default_hardware.h"
#include "cli/output.h"
#include "cli/plan_words.h"
#include "cli/print.h"
#include "cli/report.h"
#include "costmodel/profiles/pod_levels.h"
#include "models/error.h"
#include "planner/frameworks/emit_mark.h"
#include "planner/frameworks/rl/rl.h"

namespace qplan {
namespace {

namespace fs = std::filesystem;

struct EmitQuestion {
  JobChoices choices;
  std::string plan, folder;
  std::optional<Framework> framework;
  bool force = false, json = false;
};

// The plan file that is named, or a line of words as one.
PlanFile asked_plan_file(const EmitQuestion& question) {
  if (is_plan_file(question.plan)) {
    if (question.choices.gpus)
      throw Error("a plan file has its GPUs; --gpus is of a line of words");
    PlanFile file = read_plan_file(question.plan);
    file.choices = merged_with_file(question.choices, file, question.plan);
    return file;
  }
  PlanQuestion asked;
  asked.choices = question.choices;
  asked.plan = question.plan;
  if (question.framework) {
    asked.choices.framework = recipe_for(*question.framework, RecipeKind::megatron);
  }
  AskedPlan made = asked_plan(asked);
  PlanFile file;
  file.choices = made.job->choices;
  file.choices.framework = made.job->framework;
  file.plan = made.plan;
  return file;
}

// What check() has to be told of the machine, as options; empty: it takes the same by itself.
std::string machine_options(const Job& job) {
  const JobChoices& choices = job.choices;
  std::string words;
  if (!job.kinds.empty()) {
    words += " --hardware " + *choices.hardware;
  } else if (job.hardware_profile.is_null() && job.hardware.name != kDefaultHardware) {
    words += " --hardware " + job.hardware.name;
  }
  const Json changed = overrides_to_json(choices);
  for (const char* key :
       {"gpus_per_node", "nics_per_node", "nic_gb_per_s", "oversubscription", "memory_cap_gib"}) {
    if (changed.contains(key))
      words += fmt::format(" {} {}", option_name(key), changed[key].dump());
  }
  if (choices.pods) words += " --pods " + pods_text(*choices.pods);
  return words;
}

// The step of answers that a plan file keeps around its plan, as `predict` prices it.
struct StepOfPlan {
  RlStep step;
  std::optional<RlEstimate> estimate;  // none: the step cannot be
};

std::optional<StepOfPlan> step_of_plan(const Job& job, const PlanFile& file) {
  if (!file.step) return std::nullopt;
  StepOfPlan of{*file.step, {}};
  of.step.job.change_of_hands = change_of_hands_in(job.choices.files);
  const std::int64_t gpus = job.gpus + of.step.job.rollout_gpus;
  if (!rl_faults(of.step.job, job.model, file.plan, of.step.layout, gpus).empty()) return of;
  of.estimate = evaluate_rl(*job.cost, of.step.job, file.plan, of.step.layout, gpus);
  return of;
}

// Whether the files are of the whole step: of its engines, or of pairs, where it has them.
bool says_step(Framework framework, Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::sft:
      return true;
    case Algorithm::dpo:
      return framework == Framework::trl;
    case Algorithm::grpo:
    case Algorithm::ppo:
      return writes_steps(framework);
  }
  return false;
}

std::string update_alone(const RlJob& job) {
  return fmt::format(
      "these files are of {}'s update alone, on the GPUs that train: they make no {}; for a whole "
      "step use {}",
      to_word(job.algorithm), job.generates() ? "answers and have no engines" : "pairs",
      job.generates() ? "verl, nemo-rl or slime" : "trl");
}

std::string predicted_text(const Answer& answer, const std::optional<StepOfPlan>& step) {
  const Estimate& e = *answer.estimate;
  if (step && step->estimate) {
    const RlEstimate& whole = *step->estimate;
    return fmt::format("predicted: {} on the worst GPU of {}, {} a step of {}, {} tokens/s a GPU",
                       human_bytes(whole.device), human_bytes(whole.capacity),
                       human_seconds(whole.step_time), to_word(step->step.job.algorithm),
                       significant(whole.tokens_per_s_per_gpu, 4));
  }
  return fmt::format(
      "predicted: {} on the worst GPU of {}, {} a step, {} tokens/s a GPU, {} tokens/s",
      human_bytes(e.memory.worst_stage().device), human_bytes(e.capacity),
      human_seconds(e.step_time), significant(e.tokens_per_s_per_gpu, 4),
      human_count(e.tokens_per_s));
}

// What a file says of the plan it holds.
std::vector<std::string> remarks_of(const Job& job, Framework framework, const Answer& answer,
                                    const std::optional<StepOfPlan>& step) {
  std::vector<std::string> remarks{
      fmt::format("{} on {} x {}, for {}; {}", job.model.name, job.gpus, job.hardware.name,
                  to_word(framework), kWrittenByEmit),
      "plan: " + line_of(job, answer.plan)};
  if (const std::string options = machine_options(job); !options.empty()) {
    remarks.push_back("qplan:" + options);
  }
  // Where its file lies when check runs, nobody knows.
  if (job.kinds.empty() && !job.hardware_profile.is_null()) {
    remarks.push_back(
        fmt::format("{} is a profile of one's own: give its file to qplan check, --hardware FILE",
                    job.hardware.name));
  }
  const bool whole = !step || says_step(framework, step->step.job.algorithm);
  if (!whole) remarks.push_back(update_alone(step->step.job));
  remarks.push_back(predicted_text(answer, whole ? step : std::nullopt));
  if (answer.plan.document_len > 0) {
    remarks.push_back(
        fmt::format("predicted for packed sequences: pack documents of some {} tokens, and keep "
                    "attention within each of them; no file here asks for either, and qplan check "
                    "reads the plan back without doc",
                    answer.plan.document_len));
  }
  if (!answer.feasible())
    remarks.push_back("it does not fit: " + answer.infeasible.front().message);
  return remarks;
}

// What can be written instead. Of plans as near one that fits is better.
std::string nearest_text(const Job& job, Framework framework, const Subject& subject) {
  const auto fits = [&job](const ParallelPlan& plan) {
    return job.cost->fits(job.cost->memory(plan));
  };
  ParallelPlan nearest;
  if (!has_files_of(framework, job.model)) return "Choose another framework";
  if (!nearest_expressible(framework, subject, job.limits(), nearest, fits)) {
    return fmt::format(
        "No plan near it that it can was found; `qplan search --framework {}` looks at all of them",
        to_word(framework));
  }
  const Answer answer = ask(job, nearest);
  return "The nearest plan that it can: " + to_string(nearest) +
         (answer.feasible() ? "" : "; it does not fit: " + answer.infeasible.front().message);
}

[[noreturn]] void refuse(const Job& job, Framework framework, const Subject& subject,
                         const std::vector<Infeasible>& reasons) {
  std::vector<std::string> messages;
  for (const Infeasible& reason : reasons) messages.push_back(reason.message);
  throw Error(fmt::format("{} cannot express this plan: {}. {}", to_word(framework),
                          fmt::join(messages, "; "), nearest_text(job, framework, subject)));
}

// All of them or none: whatever stands in the way is found before the first is written.
void write_all(const std::string& folder, const std::vector<EmittedFile>& files, bool force) {
  const fs::path root(folder);
  std::error_code problem;
  if (fs::exists(root, problem) && !fs::is_directory(root, problem)) {
    throw Error(fmt::format("--out {} is a file; give a folder", folder));
  }
  for (const EmittedFile& file : files) {
    const fs::path path = root / file.name;
    const bool stands = fs::exists(fs::symlink_status(path, problem));
    if (stands && fs::is_directory(path, problem)) {
      throw Error(fmt::format("{} is a folder; give another --out", path.string()));
    }
    if (stands && !force) {
      throw Error(
          fmt::format("{} exists; --force overwrites, or give another --out", path.string()));
    }
  }
  const bool made = fs::create_directories(root, problem);
  if (problem) {
    throw Error(fmt::format("--out {} cannot be made: {}", folder, problem.message()));
  }
  std::vector<fs::path> written;
  try {
    for (const EmittedFile& file : files) {
      const fs::path path = root / file.name;
      write_file_atomically(path.string(), file.text);
      written.push_back(path);
      if (!file.executable) continue;
      fs::permissions(path, fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                      fs::perm_options::add, problem);
    }
  } catch (const Error&) {
    // What was there before cannot be brought back under --force; new files can go.
    for (const fs::path& path : written) {
      if (!force) fs::remove(path, problem);
    }
    if (made) fs::remove(root, problem);
    throw;
  }
}

Json to_json(const Job& job, Framework framework, const Answer& answer,
             const std::vector<EmittedFile>& files, const EmitQuestion& question) {
  Json list = Json::array();
  for (const EmittedFile& file : files) {
    const fs::path path = fs::path(question.folder) / file.name;
    list.push_back({{"name", file.name},
                    {"path", question.folder.empty() ? Json() : Json(path.string())},
                    {"executable", file.executable},
                    {"text", file.text}});
  }
  return {{"model", job.model.name},
          {"hardware", job.hardware.name},
          {"framework", to_word(job.framework)},
          {"gpus", job.gpus},
          {"short", line_of(job, answer.plan)},
          {"feasible", answer.feasible()},
          {"written_for", to_word(framework)},
          {"files", std::move(list)}};
}

}  // namespace

Exit run_emit(const Args& args, const Console& console) {
  EmitQuestion question;
  CommandLine line("emit", "A plan in a framework's own files: configuration and launch scripts.",
                   "qplan emit plan.json --framework megatron --out job");
  line.positional("PLAN",
                  "plan file, as `qplan search -o` writes it; or, with --model, a line such as "
                  "\"tp4 pp2 dp8 zero1 mbs2\"",
                  question.plan);
  line.group("Model");
  line.option({"--model", "MODEL", kModelHelp, "the plan file's"},
              set_given(question.choices.model, set_name, model_names()));
  add_read_as_option(line, question.choices.read_as);
  line.group("Output");
  const std::vector<std::string_view> framework_files = files_words();
  line.option(
      {"--framework", "NAME", fmt::format("whose files: {}", fmt::join(framework_files, ", ")),
       "the plan's own, where it has files"},
      {{.known = {framework_files.begin(), framework_files.end()}},
       [&question](const std::string&, const std::string& text) {
         question.framework = written_framework(lower_case(text));
       }});
  line.option({"--out", "DIR", "folder to write them to", ""}, set_text(question.folder));
  line.flag("--force", "overwrite files that are there", question.force);
  line.flag("--json", "the files as JSON; without --out they are written nowhere else",
            question.json);
  add_cluster_options(line, question.choices, {.with_gpus = true, .with_hardware = true});
  if (!line.parse(args, console.out)) return Exit::done;
  refuse_standard_output("--out", question.folder);
  if (question.plan.empty()) {
    throw Error("emit needs a plan file; `qplan search ... -o plan.json` writes one");
  }
  if (question.folder.empty() && !question.json) {
    throw Error("emit needs --out DIR, the folder to write to");
  }

  const PlanFile file = asked_plan_file(question);
  JobChoices choices = file.choices;
  const RecipeKind of_plan = choices.framework.value_or(RecipeKind::megatron);
  if (!question.framework) {
    choices.framework = of_plan;
    question.framework = files_of(*make_job(choices, file.plan.world()), file.plan);
  }
  if (!question.framework) {
    throw Error(fmt::format("a plan of {} has no framework of its own; give --framework, one of {}",
                            to_word(of_plan), fmt::join(framework_files, ", ")));
  }
  const Framework framework = *question.framework;
  choices.framework = recipe_for(framework, of_plan);
  choices.files = framework;
  const auto job = make_job(choices, file.plan.world());
  const Json config = config_of(*job);
  const Subject subject{job->model,
                        config,
                        file.plan,
                        job->framework,
                        job->hardware.link.gpus_per_node,
                        file.step ? &*file.step : nullptr,
                        job->cost.get()};
  const auto reasons = why_inexpressible(framework, subject, job->limits());
  if (!reasons.empty()) refuse(*job, framework, subject, reasons);

  const Answer answer = ask(*job, file.plan);
  const std::optional<StepOfPlan> step = step_of_plan(*job, file);
  const auto files = emit(framework, subject, remarks_of(*job, framework, answer, step));
  if (!question.folder.empty()) write_all(question.folder, files, question.force);
  if (question.json) {
    console.out << answer_text("emit", to_json(*job, framework, answer, files, question));
  } else {
    for (const EmittedFile& written : files) {
      print(console.out, "{}\n", (fs::path(question.folder) / written.name).string());
    }
  }
  if (step && !says_step(framework, step->step.job.algorithm)) {
    print(console.err, "note: {}\n", update_alone(step->step.job));
  }
  if (!answer.feasible()) {
    print(console.err, "note: the plan does not fit: {}\n", answer.infeasible.front().message);
  }
  return Exit::done;
}

}  // namespace qplan
