#include "cli/execution/execution.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "cli/asked_plan.h"
#include "cli/print.h"
#include "costmodel/fold/replay.h"
#include "executor/cuda/device_error.h"
#include "executor/cuda/run.h"
#include "executor/gpu_library.h"
#include "executor/gpu_limits.h"
#include "executor/host_memory.h"
#include "executor/io/checkpoint.h"
#include "models/error.h"
#include "models/statistics.h"
#include "planner/search/default_batch.h"
#include "planner/search/search.h"

namespace qplan {
namespace {

// Ranks of the reference backend are threads, and all their memory is this machine's.
constexpr std::int64_t kMostCpuRanks = 256;

void set_betas(math::AdamWSettings& adamw, const std::string& option, const std::string& text) {
  const std::vector<std::string> parts = split_list(text);
  if (parts.size() != 2) {
    throw Error(
        fmt::format("{} must be two numbers such as 0.9,0.95, is '{}'", option, shown(text)));
  }
  set_number(adamw.beta1, 0, 1)(option, parts[0]);
  set_number(adamw.beta2, 0, 1)(option, parts[1]);
}

void refuse_what_rules_forbid(const Execution& execution, Notation notation) {
  for (const Infeasible& reason : execution.predicted.infeasible) {
    if (reason.rule == "out_of_memory") continue;  // of a GPU that is not used
    throw Error(fmt::format("the plan cannot be executed: {} ({})",
                            in_notation(reason.message, notation), reason.rule));
  }
}

void check_machine(const Execution& execution) {
  const ParallelPlan& plan = execution.plan;
  if (plan.world() > kMostCpuRanks) {
    throw Error(
        fmt::format("the plan has {} ranks; the reference backend runs them as threads, at "
                    "most {}",
                    plan.world(), kMostCpuRanks));
  }
  Bytes needed(0);
  for (const StageMemory& stage : execution.job->cost->memory(plan).stages) {
    needed = needed + stage.peak * static_cast<double>(plan.world() / plan.pp);
  }
  const Bytes here = host_memory_here();
  if (needed > here) {
    throw Error(
        fmt::format("all ranks together take {} and this machine has {}; the reference "
                    "backend is for small models, such as tiny",
                    human_bytes(needed), human_bytes(here)));
  }
}

// A host without the memory for offloaded states would end the job's processes without a word.
void check_host(const Execution& execution) {
  const Bytes of_node = execution.predicted.estimate->memory.host_per_node;
  if (of_node.value() <= 0) return;
  const std::int64_t ranks = execution.plan.world();
  const std::int64_t node =
      std::min<std::int64_t>(ranks, execution.job->hardware.link.gpus_per_node);
  const Bytes needed =
      of_node * (as_double(std::min<std::int64_t>(ranks, gpu_count())) / as_double(node));
  const Bytes here = host_memory_here();
  if (needed <= here) return;
  throw Error(
      fmt::format("offloaded states take {} of the host's memory and this machine has {}; offload "
                  "less, such as offload=optimizer:0.5, or use more machines",
                  human_bytes(needed), human_bytes(here)));
}

}  // namespace

void add_execution_options(CommandLine& line, ExecutionChoices& choices) {
  line.positional("PLAN", "plan file, or a line such as \"tp2 dp2 gbs8 seq64\" with --model",
                  choices.plan);
  add_model_options(line, choices.job);
  add_job_words(line, choices.words, {}, "the fewest that give each rank work");
  add_cluster_options(line, choices.job, {.with_gpus = true, .with_hardware = true});
  line.group("Plan");
  add_plan_words(line, choices.words);
  line.group("Training");
  line.option({"--backend", "WHERE", "cpu (ranks are threads of this process) or cuda", "cpu"},
              set_word(choices.backend));
  line.option({"--steps", "COUNT", "optimizer steps to take", "10"},
              set_whole(choices.steps, 1, 1 << 24));
  math::AdamWSettings& adamw = choices.optimizer.adamw;
  line.option({"--lr", "RATE", "learning rate", "0.001"}, set_number(adamw.lr, 0, 1e3));
  line.option({"--betas", "B1,B2", "AdamW's decay of its two moments", "0.9,0.95"},
              [&adamw](const std::string& option, const std::string& text) {
                set_betas(adamw, option, text);
              });
  line.option({"--eps", "NUMBER", "AdamW's epsilon", "1e-08"}, set_number(adamw.epsilon, 0, 1));
  line.option({"--weight-decay", "RATE", "decay of the matrices", "0.1"},
              set_number(adamw.weight_decay, 0, 1e3));
  line.option({"--clip-grad", "NORM", "largest gradient norm; 0: any", "1"},
              set_number(choices.optimizer.clip_grad, 0, 1e9));
  line.option({"--seed", "NUMBER", "of weights, tokens and images that no file gives", "1"},
              set_whole(choices.seed, 0, INT64_MAX));
  line.option({"--timeout", "SECONDS", "longest time that a step may take", "600"},
              set_number(choices.timeout_s, 0.001, 1e9));
  line.group("Files");
  line.option({"--weights", "DIR", "Hugging Face safetensors to start from", "seeded"},
              set_text(choices.weights));
  line.option({"--tokens", "FILE", "raw little-endian int32 ids, seq_len + 1 a sequence", "seeded"},
              set_text(choices.tokens));
  line.flag("--repeat", "start over when the token file ends", choices.repeat);
  line.option({"--save", "DIR", "folder for checkpoints; one is written after the last step", ""},
              set_text(choices.save));
  line.option({"--save-interval", "STEPS", "also write one after every so many steps", "0"},
              set_whole(choices.save_interval, 0, 1 << 24));
  line.option({"--load", "DIR", "checkpoint to go on from, whatever plan wrote it", ""},
              set_text(choices.load));
}

Execution prepare(const ExecutionChoices& choices) {
  // Words alone are a line too, the empty one with these words.
  if (choices.plan.empty() && choices.words.empty() && !choices.job.gpus) {
    throw Error(
        "a plan is missing; name a plan file (`qplan search ... -o plan.json` writes one) "
        "or give a line such as \"tp2 dp2 gbs8 seq64\" or its words (--tp 2 --dp 2) with --model");
  }
  Execution execution;
  JobChoices job = choices.job;
  std::string fingerprint;
  std::optional<RecipeKind> planned_for;
  bool says_dp = false, says_batch = choices.words.contains("global_batch_size");
  bool says_length = choices.words.contains("seq_len");
  Notation notation = choices.plan.empty() ? Notation::options : Notation::line;
  if (is_plan_file(choices.plan)) {
    const PlanFile file = read_plan_file(choices.plan);
    planned_for = file.choices.framework;
    fingerprint = file.fingerprint;
    job = merged_with_file(choices.job, file, choices.plan);
    execution.plan = file.plan;
    says_batch = says_length = true;
    notation = Notation::file;
  } else {
    execution.plan = parse_plan(choices.plan);
    refuse_two_values(choices.plan, choices.words);
    says_dp = line_says(choices.plan, "dp");
    says_batch = says_batch || line_says(choices.plan, "global_batch_size");
    says_length = says_length || line_says(choices.plan, "seq_len");
  }
  job.framework = RecipeKind::qplan;
  // Another number of GPUs asks for another dp than a file's; without one, what the plan says is
  // what runs.
  const std::int64_t gpus = choices.job.gpus.value_or(0);
  execution.plan = with_words(execution.plan, choices.words, recipe_of(RecipeKind::qplan), gpus,
                              /*dp_stands=*/gpus == 0 || says_dp);
  ParallelPlan& plan = execution.plan;
  if (!says_batch) plan.global_batch_size = plan.micro_batch_size * plan.dp * plan.pp;
  job.gpus = gpus > 0 ? gpus : execution.plan.world();
  execution.job = make_job(job);
  if (!says_length) plan.seq_len = default_seq_len(execution.job->model);
  // As `predict --framework qplan` takes a line that does not say it.
  if (notation != Notation::file && !is_said("overlap", choices.plan, choices.words)) {
    plan.overlap = defaults_beside(plan, execution.job->model, execution.job->recipe()).overlap;
  }
  execution.predicted = ask(*execution.job, execution.plan);
  refuse_what_rules_forbid(execution, notation);
  Estimate& predicted = *execution.predicted.estimate;
  predicted.memory = with_arena(*execution.job->cost, execution.plan, std::move(predicted.memory));
  if (choices.backend == BackendKind::cuda) {
    const auto reason = why_not_on_gpu(execution.job->model, execution.plan);
    if (reason) throw Error(*reason);
    check_host(execution);
    execution.process = process_rank(environment);
    if (!execution.process && execution.plan.world() == 1) execution.process = ProcessRank{};
  } else {
    check_machine(execution);
  }
  const auto made_for = choices.job.framework ? choices.job.framework : planned_for;
  if (made_for && !recipe_of(*made_for).executable) {
    execution.notes.push_back(
        fmt::format("the plan was made for {}; its numbers here are of qplan's own executor",
                    to_word(*made_for)));
  } else if (planned_for && choices.words.empty() &&
             fingerprint != fingerprint_of(*execution.job, execution.plan)) {
    execution.notes.emplace_back("the step program has changed since the plan file was written");
  }
  return execution;
}

std::function<void(const StepReport&)> progress_line(const Console& console,
                                                     const ExecutionChoices& choices) {
  if (!console.terminal.progress) return {};
  return [&err = console.err, steps = choices.steps](const StepReport& done) {
    const bool last = done.step + 1 == steps;
    const std::string text =
        fmt::format("step {} of {}, loss {:.6f}", done.step + 1, steps, done.loss);
    print(err, "\r{:40}\r{}", "", last ? "" : text);
    err.flush();
  };
}

Executed execute(const Execution& execution, const ExecutionChoices& choices,
                 const RunOptions& extra) {
  const ModelSpec& model = execution.job->model;
  const ParallelPlan& plan = execution.plan;
  RunOptions options = extra;
  options.steps = static_cast<int>(choices.steps);
  options.optimizer = choices.optimizer;
  const auto seed = static_cast<std::uint64_t>(choices.seed);
  options.weights = seeded_weights(model, seed);
  options.tokens = seeded_tokens(seed, model.vocab_size);
  options.images = seeded_images(seed);
  options.load = choices.load;
  options.save = choices.save;
  options.save_interval = static_cast<int>(choices.save_interval);
  options.timeout = Seconds(choices.timeout_s);
  options.alive = sign_of_life(environment);
  const MemoryEstimate& memory = execution.predicted.estimate->memory;
  options.predicted_device = memory.stages[static_cast<std::size_t>(memory.worst)].device;
  if (plan.lora_rank > 0 && execution.process && !(choices.save.empty() && choices.load.empty())) {
    throw Error(
        "the cuda backend does not write or read checkpoints of adapters yet; leave --save and "
        "--load out, or use --backend cpu");
  }
  options.plan_file = report(*execution.job, execution.predicted);
  embed_job(options.plan_file, *execution.job);
  if (!choices.weights.empty()) options.weights = checkpoint_weights(model, choices.weights);
  if (!choices.tokens.empty()) {
    std::int64_t sequences = choices.steps * plan.global_batch_size;
    if (!choices.load.empty())
      sequences += Checkpoint(choices.load, model, trained_by(plan)).facts().sequences;
    options.tokens = file_tokens(choices.tokens, {.vocab_size = model.vocab_size,
                                                  .seq_len = plan.seq_len,
                                                  .sequences = sequences,
                                                  .repeat = choices.repeat});
  }
  std::optional<SaveClaim> claim;
  if (!choices.save.empty() && reports(execution)) claim.emplace(choices.save);
  Executed executed;
  const JobFacts& facts = execution.job->cost->facts();
  executed.result = execution.process ? run_on_gpu(model, plan, facts, options, *execution.process)
                                      : run(model, plan, facts, options);
  std::vector<Seconds> times = executed.result.step_time;
  if (times.size() > 1) times.erase(times.begin());  // caches are cold
  // The last is slower where it is traced: an event before and after each op.
  if (times.size() > 1 && options.keep_trace) times.pop_back();
  executed.median = median_of(times);
  executed.least = *std::min_element(times.begin(), times.end());
  executed.most = *std::max_element(times.begin(), times.end());
  const auto tokens = static_cast<double>(plan.global_batch_size * plan.seq_len);
  executed.tokens_per_s_per_gpu =
      tokens / executed.median.value() / static_cast<double>(plan.world());
  return executed;
}

Trace trace_as_timed(const Execution& execution) {
  const CostModel& cost = *execution.job->cost;
  return takes_one_queue(execution.plan) ? trace_alone(cost, execution.plan)
                                         : trace_step(cost, execution.plan, TraceGrain::op);
}

Seconds step_time_as_routed(const Execution& execution, const ExpertLoad& load) {
  const Job& job = *execution.job;
  JobFacts facts = job.cost->facts();
  facts.active_experts = load.active;
  facts.moe_imbalance = std::max(load.busiest, 1.0);
  return CostModel(job.model, job.recipe(), job.hardware, facts).step_time(execution.plan);
}

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// Beyond the timeout, so that a rank which can still speak says what it waits for.
constexpr Seconds kLastWords{5};

Exit run_again_by_local_ranks(std::int64_t ranks, const std::string& verb, const Args& args,
                              Seconds silence) {
  if (ranks > gpu_count()) {
    throw DeviceError(
        fmt::format("{} ranks need as many GPUs and this machine has {}; on several machines start "
                    "one process a GPU with torchrun, mpirun or srun",
                    ranks, gpu_count()));
  }
  LocalJob job{
      static_cast<int>(ranks), {std::filesystem::read_symlink("/proc/self/exe"), verb}, silence};
  job.command.insert(job.command.end(), args.begin(), args.end());
  const LocalResult result = run_local_ranks(job);
  if (result.exit_code == 0) return Exit::done;
  if (result.exit_code != static_cast<int>(Exit::device)) return Exit(result.exit_code);
  throw DeviceError(result.failure + "; all ranks were ended");
}

std::optional<Exit> run_by_local_ranks(const Execution& execution, const ExecutionChoices& choices,
                                       const std::string& verb, const Args& args,
                                       const Console& console) {
  if (choices.backend != BackendKind::cuda || execution.process) return std::nullopt;
  const Args& asked = console.asked;
  const Seconds silence = Seconds(choices.timeout_s) + kLastWords;
  if (asked.empty()) {
    return run_again_by_local_ranks(execution.plan.world(), verb, args, silence);
  }
  return run_again_by_local_ranks(execution.plan.world(), asked.front(),
                                  Args(asked.begin() + 1, asked.end()), silence);
}

bool reports(const Execution& execution) {
  return !execution.process || execution.process->rank == 0;
}

Bytes largest(const std::vector<Bytes>& bytes) {
  return *std::max_element(bytes.begin(), bytes.end());
}

Json to_json(const Execution& execution, const Executed& executed,
             const ExecutionChoices& choices) {
  const RunResult& r = executed.result;
  Json json = {{"backend", to_word(choices.backend)},
               {"ranks", execution.plan.world()},
               {"first_step", r.first_step},
               {"loss", r.loss},
               {"grad_norm", r.grad_norm},
               {"step_time_s",
                {{"median", executed.median.value()},
                 {"min", executed.least.value()},
                 {"max", executed.most.value()}}},
               {"tokens_per_s_per_gpu", executed.tokens_per_s_per_gpu},
               {"memory",
                {{"live_peak_gib", in_gib(largest(r.live_peak))},
                 {"arena_peak_gib", in_gib(largest(r.arena))},
                 {"device_peak_gib", r.device_peak ? Json(in_gib(*r.device_peak)) : Json()}}},
               {"notes", execution.notes},
               {"predicted", report(*execution.job, execution.predicted)}};
  if (!r.mtp_loss.empty()) json["mtp_loss"] = r.mtp_loss;
  return json;
}

}  // namespace qplan
