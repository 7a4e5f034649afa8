#pragma once
// A step of fine-tuning on answers beside its training plan: the job and how the answers are made.
// Plan files keep it under "step", and frameworks' files say both.

#include <string_view>

#include "costmodel/rollout/rollout.h"
#include "models/json.h"
#include "planner/rl/rl_job.h"

namespace qplan {

struct RlStep {
  RlJob job;
  RolloutLayout layout;
};

// What is asked for, without what it costs (docs/reference/contract.md has the keys).
Json rl_step_json(const RlStep& step);
// Throws Error naming the key; keys that it lacks keep their defaults.
RlStep rl_step_from_json(const Json& object, std::string_view path);

}  // namespace qplan
