#pragma once
// verl's keys, and how a Hydra override is kept as a setting. Private to verl's readers and checks.

#include <array>
#include <string_view>

#include "planner/frameworks/rl/omega_config.h"
#include "planner/frameworks/scene.h"

namespace qplan::verl {

inline constexpr std::string_view kActor = "actor_rollout_ref.actor.";
inline constexpr std::string_view kRollout = "actor_rollout_ref.rollout.";
inline constexpr std::string_view kRef = "actor_rollout_ref.ref.";
inline constexpr std::string_view kModel = "actor_rollout_ref.model.";

// The program, kept among the settings: "verl.trainer.main_ppo".
inline constexpr std::string_view kProgram = "(program)";
// How a key was added, before it: "+", "++" or "~".
inline std::string_view mark_of(const Setting& setting) {
  return setting.extra;
}

inline std::string key(std::string_view section, std::string_view name) {
  return std::string(section) + std::string(name);
}

inline constexpr std::string_view kHydra =
    "verl b178a3cd, verl/trainer/main_ppo.py (hydra.main, whose keys are the configuration's)";

std::string program_of(const Settings& settings);
// A program beside verl's own, which may know words of its own.
bool is_recipe(const Settings& settings);
// Supervised fine-tuning: its keys are others, read under those of the actor.
bool is_sft_program(std::string_view program);
bool is_sft(const Settings& settings);
// The whole configuration that overrides change, where it is verl's own; null: another one's.
const OptionList* defaults_of(const Settings& settings);
bool is_megatron(const Settings& settings);
// One whose keys are all listed: a slip among them is one.
bool has_listed_keys(const Settings& settings);
// One that such a program's own configuration has besides verl's.
bool is_added_key(const Settings& settings, std::string_view name);

// Keys that the configuration has not, or not where they stand; in check_verl_keys.cpp.
void check_verl_keys(const Scene& scene, const ConfigPart& part, Findings& out);

// Numbers that several checks ask for.
struct Numbers {
  explicit Numbers(const OmegaConfig& c, bool megatron, std::int64_t gpus);
  std::int64_t gpus, rollout_gpus = 0;  // of the job; set aside for answers
  std::int64_t prompts, samples, mini, longest;
  int split;  // ranks that share a sequence: Ulysses, or Megatron's tp x pp x cp
  int parts;  // ... of its tokens: Ulysses, or cp
  [[nodiscard]] std::int64_t trainers() const { return gpus - rollout_gpus; }
  [[nodiscard]] std::int64_t dp() const {
    const std::int64_t ranks = trainers() / split;
    return ranks > 0 ? ranks : 1;
  }
};

}  // namespace qplan::verl
