#pragma once
// ds_config.json (DeepSpeed edaa7221), and what is said beside it: the arguments of a Hugging Face
// Trainer script, or of Megatron-DeepSpeed (4efb479d).

#include <span>

#include "planner/frameworks/option.h"

namespace qplan {

std::span<const Option> deepspeed_options();
std::span<const Limit> deepspeed_limits();
// What the stage and the weights decide where overlap_comm or grad_accum_dtype is left out.
void settle_deepspeed(Draft& draft, const Settings& settings);
// What accelerate's yaml says in words of its own, as ds_config.json says it.
Settings deepspeed_settings(const Settings& accelerate);

// Arguments of transformers' TrainingArguments and of run_clm.py, the example script that the
// launchers start.
std::span<const Option> trainer_options();
// The same of a plan's words that no Trainer has: limits that DeepSpeed and FSDP2 share.
std::span<const Limit> trainer_limits();

std::span<const Option> megatron_deepspeed_options();
std::span<const Fact> megatron_deepspeed_facts();
std::span<const Limit> megatron_deepspeed_limits();
// The blocks of ds_config.json that go with Megatron-DeepSpeed's arguments.
std::span<const Option> megatron_deepspeed_config();

}  // namespace qplan
