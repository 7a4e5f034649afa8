#include "cli/execution/step_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/execution/execution.h"
#include "cli/print.h"
#include "costmodel/evaluate.h"
#include "costmodel/fold/pace.h"
#include "executor/cuda/run.h"
#include "executor/gpu_library.h"
#include "executor/gpu_limits.h"
#include "models/model_spec.h"
#include "models/program/recipe.h"
#include "models/statistics.h"
#include "planner/rules/executor.h"

namespace qplan {
namespace {

// Of one GPU: 4096, 8192 and 32,768 tokens a micro-batch. The last, of longer sequences, draws most
// power: Mixtral's steps of as many were 12% too fast by the first two
// (docs/evidence/archive/executor-draws-2026-11.md).
// The first that fits of each line.
const std::vector<std::vector<std::string>> kPlans = {
    {"mbs1 gbs8 seq4096", "mbs1 gbs8 seq4096 recompute=full"},
    {"mbs4 gbs16 seq2048", "mbs4 gbs16 seq2048 recompute=full"},
    {"mbs4 gbs4 seq8192", "mbs4 gbs4 seq8192 recompute=full", "mbs2 gbs4 seq8192 recompute=full"}};
// Of experts also 2048 tokens: of so few each has few rows, and its weights are what takes time.
const std::vector<std::string> kFewTokens = {"mbs1 gbs16 seq2048",
                                             "mbs1 gbs16 seq2048 recompute=full"};
// Of all GPUs together, whose collectives are kept: nothing runs beside them.
std::vector<std::string> plans_of(std::int64_t ranks, bool moe) {
  if (moe)
    return {fmt::format("dp{0} ep{0} zero1 mbs1 gbs{1} seq4096 overlap=none", ranks, 4 * ranks)};
  return {fmt::format("tp{} sp mbs1 gbs8 seq4096 overlap=none", ranks),
          fmt::format("dp{} zero1 mbs1 gbs{} seq4096 overlap=none", ranks, 4 * ranks),
          fmt::format("dp{} zero3 mbs1 gbs{} seq4096 overlap=none", ranks, 4 * ranks)};
}

// Long enough that clocks have settled, within a second on an H100.
constexpr int kSteps = 6, kFirstSteps = 20;

bool fits(const ModelSpec& model, const ParallelPlan& plan, const HardwareProfile& hardware) {
  const CostModel cost(model, recipe_of(RecipeKind::qplan), hardware, {});
  return cost.fits(cost.memory(plan));
}

// Neither the first step, which finds cold caches, nor the last, in which every op is timed.
Seconds usual_step(const RunResult& result) {
  return median_of(std::vector<Seconds>(result.step_time.begin() + 1, result.step_time.end() - 1));
}

// Of the last step, which alone is timed op by op, at the pace of the steps before it.
std::vector<Sample> samples_of(const RunResult& result, bool collectives) {
  const double pace = usual_step(result) / result.step_time.back();
  std::vector<Sample> samples;
  for (const TimedWork& timed : result.works) {
    if (std::holds_alternative<Collective>(timed.work) != collectives) continue;
    const Seconds time = collectives ? timed.time : timed.time * std::clamp(pace, 0.9, 1.1);
    if (time.value() > 0) samples.push_back({timed.work, time, timed.ranks});
  }
  return samples;
}

// Of the step that was timed, for which this rank waited for others to begin collectives.
double waited_share(const RunResult& result) {
  Seconds waited;
  for (const TraceEvent& event : result.trace.events) waited += event.waited;
  return waited / result.step_time.back();
}

RunResult run_steps(const ModelSpec& model, const ParallelPlan& plan, const ProcessRank& process,
                    int steps) {
  RunOptions options;
  options.steps = steps;
  options.weights = seeded_weights(model, 1);
  options.tokens = seeded_tokens(1, model.vocab_size);
  options.optimizer.adamw.lr = 1e-3;
  options.timeout = Seconds(60);
  options.keep_trace = true;
  options.alive = sign_of_life(environment);
  return run_on_gpu(model, plan, {.moe_imbalance = 1}, options, process);
}

}  // namespace

std::vector<std::string> usual_step_models() {
  return {"qwen3-8b",     "llama2-13b",        "qwen3-0.6b", "qwen3-30b-a3b",   "gpt-oss-20b",
          "mixtral-8x7b", "moonlight-16b-a3b", "qwen3.5-9b", "qwen3.5-35b-a3b", "nemotron-h-8b"};
}

ModelSpec few_layers_of(ModelSpec model) {
  std::vector<LayerKind> seen;
  std::size_t count = std::min<std::size_t>(2, model.layers.size());
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (std::find(seen.begin(), seen.end(), model.layers[i]) != seen.end()) continue;
    seen.push_back(model.layers[i]);
    count = std::max(count, i + 1);
  }
  model.layers.resize(count);
  model.num_layers = static_cast<std::int64_t>(count);
  model.num_mtp_layers = 0;
  return model;
}

StepSamples step_samples(const std::vector<std::string>& models, const HardwareProfile& base,
                         const ProcessRank& process, const Console& console) {
  std::vector<Sample> samples;
  std::vector<double> waits;  // of the rank that waits least, in steps whose ranks meet in layers
  ProcessRank alone;
  alone.local_rank = process.local_rank;
  int steps = kFirstSteps, meeting = 0;
  bool dense_done = false, moe_done = false;
  const auto say = [&](std::string_view text) {
    if (process.rank == 0 && console.terminal.progress) {
      print(console.err, "\r{:<79}", text);
      console.err.flush();
    }
  };
  const auto next_meeting = [&] {
    ProcessRank all = process;
    all.door = -1;
    all.port = meeting_port(process.port, meeting++);
    return all;
  };
  const auto measure = [&](const ModelSpec& model, const std::string& line,
                           const ProcessRank& ranks) {
    const bool together = ranks.world > 1;
    const ParallelPlan plan = parse_plan(line);
    if (unexecuted_on_gpu(model, plan) || !fits(model, plan, base)) return false;
    say(fmt::format("steps of {}: {}", model.name, line));
    const RunResult result = run_steps(model, plan, ranks, steps);
    std::vector<Sample> found = samples_of(result, together);
    if (!together) {
      // All GPUs run it beside each other, and a step of theirs goes at the pace of the slowest: at
      // the power limit they differ by more than in works alone
      // (docs/evidence/archive/executor-draws-2026-11-30.md).
      const double own = usual_step(result).value(), slowest = largest(next_meeting(), own);
      for (Sample& sample : found) sample.time = sample.time * (slowest / own);
    }
    if (together && meeting_ranks(RankGrid(plan, static_cast<int>(ranks.world))) > 1) {
      waits.push_back(-largest(next_meeting(), -waited_share(result)));
    }
    samples.insert(samples.end(), found.begin(), found.end());
    steps = kSteps;
    return true;
  };
  for (const std::string& name : models) {
    const ModelSpec model = few_layers_of(load_model(name));
    if (const std::string_view lacks = rules::unexecuted_part(model); !lacks.empty()) {
      if (process.rank == 0) {
        print(console.err, "{}: no steps, for qplan does not execute a model with {}\n", name,
              lacks);
      }
      continue;
    }
    if (const auto reason = unexecuted_on_gpu(model, parse_plan(kPlans.front().front()))) {
      if (process.rank == 0) print(console.err, "{}: no steps, for {}\n", name, *reason);
      continue;
    }
    const auto first_that_fits = [&](const std::vector<std::string>& lines) {
      return std::any_of(lines.begin(), lines.end(),
                         [&](const std::string& line) { return measure(model, line, alone); });
    };
    bool any = false;
    for (const std::vector<std::string>& lines : kPlans) any |= first_that_fits(lines);
    if (model.moe) any |= first_that_fits(kFewTokens);
    if (!any && process.rank == 0) {
      print(console.err, "{}: no steps, for {} of its layers do not fit one {}\n", name,
            model.num_layers, base.gpu.name);
    }
    bool& done = model.moe ? moe_done : dense_done;
    if (process.world > 1 && !done) {
      for (const std::string& line : plans_of(process.world, model.moe.has_value())) {
        done |= measure(model, line, next_meeting());
      }
    }
  }
  if (process.rank == 0 && console.terminal.progress) console.err << '\n';
  return {std::move(samples), waits.empty() ? 0 : median_of(waits)};
}

}  // namespace qplan
