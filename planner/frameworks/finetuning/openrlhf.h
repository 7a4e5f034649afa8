#pragma once
// OpenRLHF's programs (3c3be623): train_sft, train_rm, train_dpo and train_ppo_ray, their arguments
// by the dotted names of 0.10 and later ("--train.batch_size") and the flat ones before.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "planner/frameworks/finetuning/finetuning.h"
#include "planner/frameworks/readers/job_files.h"

namespace qplan {

// "openrlhf.cli.train_sft", "openrlhf/cli/train_sft.py": "sft"; empty: another program.
std::string openrlhf_verb_of(std::string_view script);

// The dotted name of an argument as it is written; of one that has none, or another meaning,
// itself.
std::string_view dotted_name(std::string_view written);
// Arguments by their dotted names, the policy's model as "--model.": "flat names" is among them
// where any was written the older way.
Settings dotted_openrlhf(const Settings& arguments);
// As the part writes an argument.
std::string written_name(const Settings& arguments, std::string_view dotted);

// GPUs that train_ppo_ray asks Ray for: those of the policy, and of all that has GPUs of its own.
// Nothing: a number is only known when it runs, or these are another program's arguments.
std::optional<std::int64_t> gpus_of_openrlhf(const ConfigPart& part);
// Those that the policy does not train on, of so many.
std::int64_t gpus_beside_policy(const JobFiles& files, std::int64_t gpus);

}  // namespace qplan
