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
// What a plan file keeps of it besides what is `said` of the step: lengths that were stated one by
// one, so that who reads the file prices the same step.
Json rl_file_json(const RlStep& step, Json said);
// Throws Error naming the key; keys that it lacks keep their defaults.
RlStep rl_step_from_json(const Json& object, std::string_view path);

}  // namespace qplan
