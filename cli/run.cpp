// `qplan run`: executes a plan's training steps.

#include "cli/run.h"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <ostream>

#include "cli/commands.h"
#include "cli/report.h"
#include "models/error.h"

namespace qplan {
namespace {

SetOption set_betas(double& beta1, double& beta2) {
  return [&beta1, &beta2](const std::string& option, const std::string& text) {
    const std::vector<std::string> parts = split_list(text);
    if (parts.size() != 2) throw Error(option + " takes two numbers, for example 0.9,0.95");
    set_number(beta1, 0, 1)(option, parts[0]);
    set_number(beta2, 0, 1)(option, parts[1]);
  };
}

TokenSource tokens_of(const RunQuestion& question, const Job& job, const ParallelPlan& plan) {
  if (question.tokens.empty()) {
    return seeded_tokens(static_cast<std::uint64_t>(question.seed), job.model.vocab_size);
  }
  return file_tokens(question.tokens, {.vocab_size = job.model.vocab_size,
                                       .seq_len = plan.seq_len,
                                       .sequences = question.steps * plan.global_batch_size,
                                       .repeat = question.repeat});
}

struct StepTimes {
  double median = 0, fastest = 0, slowest = 0;
};
StepTimes times_of(const RunResult& result) {
  std::vector<double> seconds;
  for (const Seconds t : result.step_time) seconds.push_back(t.value());
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds.front(), seconds.back()};
}

Bytes largest_of(const std::vector<Bytes>& bytes) {
  return *std::max_element(bytes.begin(), bytes.end());
}

double tokens_per_second(const RunJob& run, const StepTimes& times) {
  const auto tokens = static_cast<double>(run.plan.global_batch_size * run.plan.seq_len);
  return tokens / times.median / static_cast<double>(run.plan.world());
}

Json to_json(const RunJob& run, const RunQuestion& question, const RunResult& result) {
  const StepTimes times = times_of(result);
  const double arena = in_gib(largest_of(result.arena));
  return {
      {"backend", question.backend},
      {"ranks", run.plan.world()},
      {"loss", result.loss},
      {"grad_norm", result.grad_norm},
      {"step_time_s", {{"median", times.median}, {"min", times.fastest}, {"max", times.slowest}}},
      {"tokens_per_s_per_gpu", tokens_per_second(run, times)},
      {"memory",
       {{"arena_peak_gib", arena},
        {"device_peak_gib", arena},
        {"live_peak_gib", in_gib(largest_of(result.live_peak))}}},
      {"notes", run.notes},
      {"predicted", report(*run.job, ask(*run.job, run.plan))}};
}

void print_text(const RunJob& run, const RunResult& result, std::ostream& out) {
  const StepTimes times = times_of(result);
  out << model_line(*run.job)
      << batch_line(*run.job, run.plan.global_batch_size, run.plan.seq_len, run.plan.precision)
      << wrapped("plan         " + to_string(run.plan), 116, 13) << '\n';
  Table table({{"step", "", Align::right},
               {"loss", "nats", Align::right},
               {"grad norm", "", Align::right},
               {"time", "ms", Align::right}});
  for (std::size_t i = 0; i < result.loss.size(); ++i) {
    table.row({std::to_string(i + 1), fixed(result.loss[i], 5), fixed(result.grad_norm[i], 4),
               fixed(result.step_time[i].value() * 1e3, 1)});
  }
  out << table.text() << '\n';
  fmt::print(out, "{} ranks as threads, {} tokens/s a rank, arena {} ({} live at most)\n",
             run.plan.world(), fixed(tokens_per_second(run, times), 0),
             human_bytes(largest_of(result.arena)), human_bytes(largest_of(result.live_peak)));
  out << notes_text(run.notes);
}

}  // namespace

void add_run_options(CommandLine& line, RunQuestion& q) {
  line.positional("PLAN", "plan file, as `qplan search -o` writes it", q.plan);
  line.option({"--backend", "NAME", "what executes: cpu (ranks are threads)", "cpu"},
              set_text(q.backend));
  line.option({"--precision", "NAME", "number format of the products: bf16, fp32", "the plan's"},
              set_text(q.precision));
  line.group("Training");
  line.option({"--steps", "COUNT", "optimizer steps", "1"}, set_whole(q.steps, 1, 1 << 30));
  line.option({"--lr", "RATE", "learning rate of AdamW", significant(q.lr)},
              set_number(q.lr, 0, 1e3));
  line.option({"--betas", "B1,B2", "its moments' decay", "0.9,0.95"}, set_betas(q.beta1, q.beta2));
  line.option({"--eps", "NUMBER", "added to its denominator", significant(q.eps)},
              set_number(q.eps, 0, 1));
  line.option({"--weight-decay", "RATE", "decay of matrices", significant(q.weight_decay)},
              set_number(q.weight_decay, 0, 1e3));
  line.option({"--clip-grad", "NORM", "largest gradient norm; 0: any", significant(q.clip_grad)},
              set_number(q.clip_grad, 0, 1e12));
  line.group("Inputs");
  line.option({"--seed", "NUMBER", "of weights and tokens that no file gives", "1"},
              set_whole(q.seed, 0, std::int64_t{1} << 53));
  line.option({"--weights", "DIR", "safetensors in Hugging Face's naming", "seeded"},
              set_text(q.weights));
  line.option({"--tokens", "FILE", "little-endian int32 ids, sequences of seq_len + 1", "seeded"},
              set_text(q.tokens));
  line.flag("--repeat", "start over when the token file is used up", q.repeat);
  line.group("Execution");
  line.option({"--timeout", "SECONDS", "longest a run may take", "any"},
              set_number(q.timeout_s, 0, 1e9));
  line.flag("--deterministic", "the same bits every time (the cpu backend always gives them)",
            q.deterministic);
  add_cluster_options(line, q.choices, {.with_gpus = false, .with_hardware = true});
  line.group("Output");
  line.flag("--json", "the same as JSON", q.json);
}

RunJob make_run_job(const RunQuestion& q) {
  if (q.plan.empty()) {
    throw Error("run needs a plan file; `qplan search ... -o plan.json` writes one");
  }
  if (q.backend != "cpu") {
    throw Error(
        fmt::format("backend '{}' is not in this build; use --backend cpu", shown(q.backend)));
  }
  PlanFile file = read_plan_file(q.plan);
  RunJob run;
  JobChoices choices = merged(q.choices, file.choices);
  const RecipeKind written_for = choices.framework.value_or(RecipeKind::megatron);
  if (written_for != RecipeKind::qplan) {
    run.notes.push_back(fmt::format("the plan was written for {}; it is priced and run as qplan's",
                                    to_word(written_for)));
  }
  choices.framework = RecipeKind::qplan;
  run.plan = file.plan;
  if (!q.precision.empty()) run.plan.precision = from_word<Precision>(q.precision);
  run.job = make_job(choices);
  const auto broken =
      why_infeasible(run.job->model, run.plan, run.job->recipe(), run.job->limits());
  if (!broken.empty()) {
    throw Error(fmt::format("{}: the plan cannot run: {}", q.plan, broken.front().message));
  }
  if (written_for == RecipeKind::qplan && !file.fingerprint.empty() && q.precision.empty() &&
      file.fingerprint != fingerprint_of(*run.job, run.plan)) {
    run.notes.emplace_back(
        "the step program has changed since the plan file was written; its numbers were of the old "
        "one");
  }
  run.options.steps = static_cast<int>(q.steps);
  run.options.timeout = Seconds(q.timeout_s);
  run.options.optimizer = {.adamw = {.lr = q.lr,
                                     .beta1 = q.beta1,
                                     .beta2 = q.beta2,
                                     .epsilon = q.eps,
                                     .weight_decay = q.weight_decay},
                           .clip_grad = q.clip_grad};
  run.options.weights = q.weights.empty()
                            ? seeded_weights(run.job->model, static_cast<std::uint64_t>(q.seed))
                            : checkpoint_weights(run.job->model, q.weights);
  run.options.tokens = tokens_of(q, *run.job, run.plan);
  return run;
}

RunResult execute(const RunJob& run) {
  return qplan::run(run.job->model, run.plan, run.job->cost->facts(), run.options);
}

Exit run_run(const Args& args, const Console& console) {
  RunQuestion question;
  CommandLine line("run", "Executes training steps of a plan.",
                   "qplan run plan.json --steps 10 --lr 3e-4 --tokens tokens.bin");
  add_run_options(line, question);
  if (!line.parse(args, console.out)) return Exit::done;
  const RunJob run = make_run_job(question);
  const RunResult result = execute(run);
  if (question.json) {
    console.out << json_text(to_json(run, question, result));
  } else {
    print_text(run, result, console.out);
  }
  return Exit::done;
}

}  // namespace qplan
