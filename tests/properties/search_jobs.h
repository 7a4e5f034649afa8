#pragma once
// Small random questions for a search.

#include <cstdint>
#include <string>

#include "planner/search/search.h"
#include "tests/properties/random_plans.h"

namespace qplan {

// A small random job: a model, a recipe, some GPUs and a few free words.
struct SearchJob {
  std::string name;
  ModelSpec model;
  const Recipe* recipe = nullptr;
  HardwareProfile hardware;
  SearchSpace space;
  Bytes cap;
};

inline SearchJob random_search_job(RandomPlans& random) {
  SearchJob job;
  job.name =
      random.pick<std::string>({"tiny", "tiny-moe", "qwen3-0.6b", "llama3-8b", "qwen3-30b-a3b"});
  job.model = load_model(job.name);
  job.recipe = &recipe_of(random.pick<RecipeKind>(
      {RecipeKind::megatron, RecipeKind::qplan, RecipeKind::megatron_fsdp, RecipeKind::megatron}));
  job.hardware = load_hardware(random.pick<std::string>({"h100-sxm", "a100-80gb-sxm", "b200"}));
  job.space.gpus = random.pick<std::int64_t>({4, 8, 12, 16});
  job.space.job.global_batch_size = job.space.gpus * random.pick<std::int64_t>({1, 4, 6});
  job.space.job.seq_len = random.pick<std::int64_t>({512, 2048});
  // Keeps the unpruned search small.
  job.space[&ParallelPlan::micro_batch_size] = {1, 2};
  job.space[&ParallelPlan::cp] = {1};
  job.space[&ParallelPlan::recompute] = {Recompute{}, Recompute{RecomputeKind::full, {}, 0}};
  job.space[&ParallelPlan::offload] = {Offload{}};
  // Often too little for some plans, so that the memory test takes part.
  job.cap = gib(random.pick<double>({2, 20, 75, 1000}));
  return job;
}

}  // namespace qplan
