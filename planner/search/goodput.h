#pragma once
// From a step to a training run: how much of the time is useful, how long it takes, what it costs.
// Folds over the predicted step time and facts of the cluster; nothing of this is part of the step.

#include <algorithm>
#include <cstdint>

#include "costmodel/profiles/hardware.h"
#include "models/model_spec.h"
#include "models/plan/parallel_plan.h"
#include "models/program/recipe.h"
#include "models/units.h"

namespace qplan {

// A full checkpoint: the weights, the optimizer's master copy of them where it keeps one, and
// Adam's two moments, as the plan's update has them: 14 bytes a parameter of bf16 with the rest in
// fp32.
Bytes checkpoint_bytes(const ModelSpec& model, const Recipe& recipe, const ParallelPlan& plan);
// Parameters that the plan's update moves: all, or adapters.
double updated_parameters(const ModelSpec& model, const Recipe& recipe, const ParallelPlan& plan);

// Where checkpoints are written, by all nodes at once.
struct CheckpointStorage {
  BytesPerSecond per_node = gb_per_s(2);  // assumed
  // Llama 3's file system sustained 2 TB/s for all (arXiv 2407.21783, section 3.3.1).
  BytesPerSecond total = gb_per_s(2000);

  [[nodiscard]] Seconds time_of(Bytes checkpoint, std::int64_t nodes) const {
    return checkpoint / std::min(per_node * static_cast<double>(nodes), total);
  }
};

// What fails how often, and what it costs each time.
struct Reliability {
  // Unexpected interruptions. Llama-3 405B on 16 384 H100: 3.79 (arXiv 2407.21783); Meta's research
  // clusters: 2.34 and 6.50 (arXiv 2410.21680).
  double failures_per_1000_node_days = 4;
  // From a failure to the first step after it: detection, scheduling, loading. Assumed.
  Seconds restart = Seconds(600);
  // Training waits for checkpoints. Assumed; asynchronous saves block for 1-10 s.
  CheckpointStorage storage;
};

struct Goodput {
  Seconds mean_time_between_failures;
  Seconds save_time;      // that training waits for one checkpoint
  Seconds save_interval;  // the best: sqrt(2 save_time mean_time_between_failures) (Young 1974)
  double share = 1;       // of the time that makes progress
};
Goodput goodput(const Reliability& facts, Bytes checkpoint, std::int64_t nodes);

// How much longer a step takes in a long run than alone: uneven sequences, garbage collection, slow
// hosts. Each node is late by a share of a step that is drawn anew each step (exponential), and all
// wait for the last: the longest of n draws grows as the logarithm of n. The mean is the one that
// costs 512 nodes 10%: assumed, from 42.5% of jobs being at least 10% slower than ideal (arXiv
// 2505.05713).
inline constexpr double kMeanDelay = 0.0147;
double straggler_slowdown(std::int64_t nodes, double mean_delay = kMeanDelay);

// A run of `tokens`.
struct RunFacts {
  double tokens = 1e12;
  double price_per_gpu_hour = 0;  // USD; 0: unknown
  double pue = 1;                 // power of the building / power of the nodes
  Reliability reliability;
};

struct RunCost {
  Seconds wall;
  double gpu_hours = 0;
  double usd = 0;  // 0: no price
  double kwh = 0;
  double joule_per_token = 0;
  Goodput goodput;
  double slowdown = 0;  // stragglers
};
RunCost cost_of_run(const RunFacts& facts, Bytes checkpoint, const HardwareProfile& hardware,
                    std::int64_t gpus, double tokens_per_s);

}  // namespace qplan
