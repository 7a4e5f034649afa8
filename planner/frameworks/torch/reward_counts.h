#pragma once
// GRPO's rewards in a program: one weight for each. Private to check().

#include "planner/frameworks/scene.h"

namespace qplan {

// GRPOConfig(reward_weights=[...]) beside GRPOTrainer(reward_funcs=[...]), where the program has
// one of each.
void check_reward_counts(const PythonText& text, Findings& out);

}  // namespace qplan
