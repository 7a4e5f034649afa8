#pragma once
// What the writers of verl and NeMo-RL share, and slime's of a step.

#include <span>
#include <string>
#include <string_view>

#include "planner/frameworks/emit.h"
#include "planner/frameworks/option.h"
#include "planner/rl/rl_step.h"

namespace qplan {

// Who trains: Megatron, or FSDP2 over transformers' modules.
inline bool by_megatron(const Subject& s) {
  return s.recipe == RecipeKind::megatron;
}
inline bool by_shards(const Subject& s) {
  return s.recipe == RecipeKind::fsdp2;
}

struct WrittenStep {
  RlStep step;
  bool packs = true;  // micro-batches are made by tokens
};

// An engine for the answers of a plan by itself: of a node's GPUs, as many as heads and world
// divide by; of more nodes where those do not hold the weights in their share of memory.
RolloutLayout written_engine(const Subject& subject, double memory_share);
// Whether an engine leaves room for answers beside the model's weights.
bool holds_weights(const CostModel& cost, const RolloutLayout& engine);

// Its job alone, without who makes the answers.
WrittenStep job_to_write(const Subject& subject);

// The subject's own; for a plan by itself one of GRPO whose optimizer steps are the plan's batch,
// each answer a sequence of its length.
WrittenStep step_to_write(const Subject& subject);

// A value as Hydra reads it: "True", "[a,b]", "null".
std::string hydra_text(const Json& value);
// In a shell.
std::string quoted_override(const std::string& word);

// Of a step alone: what none of slime, verl and NeMo-RL says.
std::span<const Limit> step_limits();
// What neither verl's nor NeMo-RL's files say.
std::span<const Limit> rl_limits();
// Formats of states that neither has words for.
bool has_rl_states(const Subject& subject);
std::string rl_states_message(const Subject& subject, std::string_view framework);

}  // namespace qplan
