// `qplan check`: what is wrong with somebody's configuration, how fast it would be, and what would
// be better.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "cli/answer.h"
#include "cli/check_answer.h"
#include "cli/check_best.h"
#include "cli/check_files.h"
#include "cli/check_formats.h"
#include "cli/check_json.h"
#include "cli/check_judge.h"
#include "cli/check_text.h"
#include "cli/commands.h"
#include "cli/files_plan.h"
#include "cli/job_defaults.h"
#include "cli/output.h"
#include "models/error.h"
#include "planner/frameworks/fix.h"
#include "planner/frameworks/readers/recognise.h"
#include "planner/rl/rl_job.h"

namespace qplan {
namespace {

namespace fs = std::filesystem;

struct CheckWords : FilesQuestion {
  std::vector<std::string> files;
  std::string fix, sarif;
  CheckFormat format = CheckFormat::text;
  bool best = true, each = false, skip_unknown = false;
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

// ---- what is asked ----

// What may be said of a job on the command line and in a remark of its files.
void add_job_options(CommandLine& line, CheckWords& question) {
  line.group("Model");
  line.option({"--model", "MODEL", kModelHelp, "what the files describe or name"},
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

// What is said of files by each of several answers: of findings those that all of them have.
Checked common(Checked first, std::span<const Checked> others) {
  for (const Checked& other : others) {
    std::erase_if(first.findings, [&](const Finding& finding) {
      return std::none_of(other.findings.begin(), other.findings.end(), [&](const Finding& f) {
        return f.rule == finding.rule && f.message == finding.message &&
               f.place.file == finding.place.file && f.place.line == finding.place.line;
      });
    });
  }
  first.says_plan = false;
  first.step.reset();
  return first;
}

// Of a job whose GPUs nobody counts: what is wrong whatever they are, as numbers of them that have
// little in common show; once a correction lets them be counted, all of it.
class UncountedJudge {
 public:
  explicit UncountedJudge(const CheckWords& question) : question_(question) {}

  Checked operator()(std::span<const ConfigText> files) {
    if (const auto gpus = gpus_of_files({files.begin(), files.end()})) {
      return (*world_of(*gpus).judge)(files);
    }
    const auto read = [&](std::int64_t gpus) {
      const World& world = world_of(gpus);
      return check_files(*world.question, *world.job, files);
    };
    const std::array<Checked, 2> others{read(8), read(384)};
    return common(read(512), others);
  }

 private:
  struct World {
    std::shared_ptr<Job> job;
    std::unique_ptr<CheckWords> question;
    std::unique_ptr<FileJudge> judge;
  };

  World& world_of(std::int64_t gpus) {
    World& world = worlds_[gpus];
    if (world.judge == nullptr) {
      world.question = std::make_unique<CheckWords>(question_);
      world.question->choices.gpus = gpus;
      world.job = make_job(world.question->choices);
      world.judge = std::make_unique<FileJudge>(*world.question, *world.job);
    }
    return world;
  }

  const CheckWords& question_;
  std::map<std::int64_t, World> worlds_;
};

// Of a job whose model nobody names: what is wrong whatever it is, as models that have little in
// common show; once a correction lets it be read from the files, all of it.
class UnnamedJudge {
 public:
  explicit UnnamedJudge(const CheckWords& question) : question_(question) {}

  Checked operator()(std::span<const ConfigText> files) {
    CheckWords named = question_;
    try {
      read_model_of_files(named, {files.begin(), files.end()});
    } catch (const Error&) {
      named.choices.model.reset();
    }
    if (named.choices.model) return judge(named, files);
    std::vector<Checked> all;
    for (const char* const model : {"gpt3-175b", "qwen3-0.6b", "qwen3-30b-a3b", "deepseek-v3"}) {
      named.choices.model = model;
      all.push_back(judge(named, files));
    }
    return common(all.front(), std::span(all).subspan(1));
  }

 private:
  static Checked judge(CheckWords& question, std::span<const ConfigText> files) {
    if (!question.choices.gpus) return UncountedJudge(question)(files);
    return check_files(question, *make_job(question.choices), files);
  }

  const CheckWords& question_;
};

// Whether a script has faults, which may be what hides the model, and not only that it is no job's.
bool has_faulty_script(const Checked& checked, std::span<const ConfigText> files) {
  constexpr std::array<std::string_view, 4> kNoJob{"nothing_to_check", "unknown_file",
                                                   "config_missing", "not_judged"};
  return std::any_of(checked.findings.begin(), checked.findings.end(), [&](const Finding& f) {
    const bool in_script = std::any_of(files.begin(), files.end(), [&](const ConfigText& file) {
      const FileKind kind = file_kind_of(file);
      return file.name == f.place.file && (kind == FileKind::script || kind == FileKind::toml ||
                                           checked.framework == Framework::nanotron);
    });
    return in_script && f.severity == Severity::error &&
           std::find(kNoJob.begin(), kNoJob.end(), f.rule) == kNoJob.end();
  });
}

// Whether no file is read as a job's, and why is said: model and GPUs do not matter then. What many
// files are asked for passes over such.
bool is_unread(const CheckWords& question, const Checked& checked) {
  if (checked.framework || (question.each && question.skip_unknown)) return false;
  return std::any_of(checked.findings.begin(), checked.findings.end(), [](const Finding& f) {
    return f.severity == Severity::error &&
           (f.rule == "unknown_file" || (f.rule == "nothing_to_check" && f.place.line > 0));
  });
}

// Of a job without a model; nothing: no file has a fault that shows without one.
std::optional<FoundInFiles> judge_unnamed(const CheckWords& question,
                                          const std::vector<ConfigText>& files,
                                          const std::string& why) {
  FoundInFiles found;
  UnnamedJudge judge(question);
  found.fixed = fix(files, std::ref(judge));
  found.checked = found.fixed.before;
  const bool unread = is_unread(question, found.checked);
  if (!unread && !has_faulty_script(found.checked, files)) return std::nullopt;
  found.files = files;
  found.wants_fix = !question.fix.empty();
  if (unread) {
    if (found.wants_fix) write_fixed(found, found.files, question.fix);
    return found;
  }
  const Finding unnamed{Severity::error,
                        "model_unsaid",
                        {found.files.front().name, 0},
                        why + ": what follows from the model is not judged",
                        "--model NAME",
                        "qplan check",
                        {}};
  found.checked.findings.insert(found.checked.findings.begin(), unnamed);
  found.fixed.before = found.checked;
  try {
    CheckWords named = question;
    read_model_of_files(named, found.fixed.files);
    if (!named.choices.model) throw Error(why);
  } catch (const Error&) {
    found.fixed.left.push_back({unnamed, "no correction tells which model it is"});
  }
  if (found.wants_fix) write_fixed(found, found.files, question.fix);
  return found;
}

// Throws Error where it is one of many jobs and nothing else is wrong with it.
FoundInFiles judge_uncounted(const CheckWords& question, std::vector<ConfigText> files) {
  FoundInFiles found;
  UncountedJudge judge(question);
  found.fixed = fix(files, std::ref(judge));
  found.checked = found.fixed.before;
  const bool of_many = question.each && question.skip_unknown;
  if (of_many && !found.checked.has(Severity::error) && !found.checked.has(Severity::warning)) {
    throw Error(kGpusMissing);
  }
  found.files = std::move(files);
  found.wants_fix = !question.fix.empty();
  if (is_unread(question, found.checked)) {
    if (found.wants_fix) write_fixed(found, found.files, question.fix);
    return found;
  }
  const Finding uncounted{Severity::error,
                          "gpus_unsaid",
                          {found.files.front().name, 0},
                          "the files do not say how many GPUs the job has: what follows from their "
                          "number is not judged",
                          "--gpus COUNT",
                          "qplan check",
                          {}};
  found.checked.findings.insert(found.checked.findings.begin(), uncounted);
  found.fixed.before = found.checked;
  if (!gpus_of_files(found.fixed.files)) {
    found.fixed.left.push_back({uncounted, "no file can say it for every job"});
  }
  if (found.wants_fix) write_fixed(found, found.files, question.fix);
  return found;
}

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
  if (!question.choices.model) {
    std::string why = "--model is missing; `qplan models` lists the built-in ones";
    try {
      read_model_of_files(question, files);
    } catch (const Error& error) {
      why = error.what();
    }
    if (!question.choices.model) {
      if (auto found = judge_unnamed(question, files, why)) return std::move(*found);
      throw Error(why);
    }
  }
  if (!question.choices.gpus) return judge_uncounted(question, std::move(files));
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
    // What a step trains with is what the best one is told by.
    if (found.step && step_is_job(found.checked)) {
      found.yours = ask(*found.job,
                        update_plan(found.checked.step->job, found.job->model, found.checked.plan));
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
      return print_check_text(answer, question.each, out);
    case CheckFormat::json: {
      if (question.each || answer.jobs.empty()) {
        out << answer_text("check_each", checks_json(answer));
        return;
      }
      Json json = check_json(answer.jobs.front());
      json["skipped"] = skipped_json(answer);
      out << answer_text("check", json);
      return;
    }
    case CheckFormat::sarif:
      out << sarif_text(shown_findings(answer));
      return;
    case CheckFormat::github:
      out << github_text(shown_findings(answer));
      for (const FoundInFiles& found : answer.jobs) print_check_job(found, out);
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
