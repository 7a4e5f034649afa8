#pragma once
// prime-rl's TOML (559b44772): fine-tuning, and the trainer of reinforcement learning. Its trainer
// is FSDP2 of compiled layers with torchtitan's meshes, so that it is read in torchtitan's words.

#include <cstdint>
#include <string>
#include <vector>

#include "planner/frameworks/finetuning/finetuning.h"

namespace qplan {

// "orchestrator." and a trainer; or a model, data and an optimizer or GPUs.
bool is_prime_rl(const Settings& toml);
// One of engines or environments alone, or of a trainer whose answers another file describes.
bool is_prime_rl_of_others(const Settings& toml);

struct PrimeRlGpus {
  std::int64_t nodes, of_node;  // that train
};
PrimeRlGpus gpus_of_prime_rl(const Settings& toml);
std::string model_of_prime_rl(const Settings& toml);

TrainerJob job_of_prime_rl(const Settings& toml, const Place& place);

// What its classes refuse: names, values, and what stands beside what.
std::vector<Finding> refusals_of_prime_rl(const Settings& toml);

// The key of a derived part that names the model.
inline constexpr std::string_view kPrimeRlModel = "prime-rl's model";

}  // namespace qplan
