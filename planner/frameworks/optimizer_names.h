#pragma once
// Optimizers by the names that others give them: a Trainer's --optim, DeepSpeed's optimizer.type,
// LLaMA-Factory's and axolotl's keys, classes of torch, bitsandbytes, torchao and transformers.

#include <string>
#include <string_view>

#include "models/plan/parallel_plan.h"
#include "planner/frameworks/option.h"

namespace qplan {

// What a plan has of it. `assumed`: what it is judged as where no plan says it, a sentence, and
// whether that is more memory than it takes.
struct NamedOptimizer {
  OptimizerKind kind = OptimizerKind::adam;
  std::string assumed;
  bool takes_less = false;
};
inline constexpr std::string_view kSgdWithMomentum = "sgd with a momentum";
NamedOptimizer optimizer_named(std::string_view name);

// What plans take SGD's momentum for: Megatron's --sgd-momentum where nobody says it.
inline constexpr double kSgdMomentum = 0.9;

// Reads such a name into the draft, with what is assumed of it.
void read_optimizer(Draft& draft, const Json& name);

// DeepSpeed's optimizer.type; empty: its own file has no word for it, a Trainer's --optim does.
std::string_view deepspeed_optimizer(OptimizerKind kind);

}  // namespace qplan
