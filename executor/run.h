#pragma once
// Executes training steps of a plan on the reference backend: ranks are threads of this process.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "executor/cpu/rank.h"
#include "executor/io/checkpoint.h"
#include "executor/io/images.h"
#include "executor/io/tokens.h"
#include "executor/io/weights.h"
#include "executor/states.h"
#include "models/json.h"
#include "models/program/recipe.h"
#include "models/program/trace.h"

namespace qplan {

// What came of a step.
struct StepReport {
  int step = 0;             // of this run, from 0
  std::int64_t number = 1;  // counted from the first run's first
  double loss = 0, mtp_loss = 0, grad_norm = 0;
  Seconds time;
};

struct RunOptions {
  int steps = 1;
  OptimizerSettings optimizer;
  WeightSource weights;  // what the model starts from, unless a checkpoint is loaded
  TokenSource tokens;    // step k (from 0) reads sequences [k gbs, (k + 1) gbs)
  ImageSource images = seeded_images(1);  // of those sequences, where the model sees any
  bool keep_gradients = false;            // of the first step, put together from all ranks
  bool keep_weights = false;              // after the last step
  bool keep_trace = false;                // of the last step
  // Checkpoints: a run that loads one goes on where it ended, under whatever plan. `steps` more are
  // done; a checkpoint is saved after the last, and where the interval is not 0 after every so
  // many.
  std::string load, save;
  int save_interval = 0;
  std::optional<Bytes> predicted_device;  // memory that a GPU was predicted to need
  Json plan_file = Json::object();        // what a checkpoint's plan.json holds
  Seconds timeout{600};                   // longest time without a rank that ends a step
  std::function<void()> alive;  // on GPUs: called after each block's loading and each step
  // After each step of all ranks (on GPUs: of this one).
  std::function<void(const StepReport&)> progress;
  std::optional<std::uint64_t> shuffle;  // a random order of what the program leaves open; a seed
  std::function<void(std::int64_t rank, std::size_t command)> before;  // may throw; for tests

  // Whether a checkpoint is saved after this step of the run, the first being 0.
  [[nodiscard]] bool saves_after(int step) const;
};

// How natural routing spread a step's tokens, the mean over its products: the share of the experts
// that got any, and the rows of the busiest rank of an ep group over the mean rank's.
struct ExpertLoad {
  double active = 1, busiest = 1;
};

// What an op of a traced step took on its stream, a collective since the last of its group's
// `ranks` had begun it.
struct TimedWork {
  Work work;
  Seconds time;
  int ranks = 1;
};

struct RunResult {
  std::int64_t first_step = 1;          // counted from the first run's first
  std::vector<double> loss, grad_norm;  // one a step
  std::vector<double> mtp_loss;         // of multi-token prediction, not weighted; empty without
  std::vector<Seconds> step_time;       // of the slowest rank
  std::vector<Bytes> live_peak;         // of each pipeline rank: bytes allocated at once
  std::vector<Bytes> arena;             // of each pipeline rank: what that takes once laid out
  std::optional<Bytes> device_peak;     // of rank 0's GPU, as its driver shows it
  ModelTensors gradients, weights;
  Trace trace;
  std::vector<TimedWork> works;           // of the traced step of this rank, on a GPU
  std::optional<ExpertLoad> expert_load;  // of the traced step of rank 0, on a GPU
  bool in_program_order = true;  // every rank ended its commands lane by lane in program order
};

// Tokens of a step of this run, the first being 0: global_batch_size sequences of seq_len + 1,
// behind those that runs before it have read.
std::vector<std::int32_t> read_batch(const RunOptions& options, const ParallelPlan& plan,
                                     const CheckpointFacts& done, int step);
// What a plan's checkpoints hold.
Trained trained_by(const ParallelPlan& plan);
// What has been done after so many steps of this run.
CheckpointFacts facts_after(const CheckpointFacts& done, const ParallelPlan& plan,
                            std::int64_t steps);

// Throws Error: the first failure of any rank, with rank, op and block.
RunResult run(const ModelSpec& model, const ParallelPlan& plan, const JobFacts& facts,
              const RunOptions& options);

}  // namespace qplan
