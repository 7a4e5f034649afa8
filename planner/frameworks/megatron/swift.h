#pragma once
// ms-swift's Megatron form (3602360a): `megatron sft --tensor_model_parallel_size 2`. Its arguments
// are Megatron's flags by other letters; where a name, a value or a default is another, and nothing
// else, stands here.

#include <span>
#include <string>

#include "planner/frameworks/emit.h"
#include "planner/frameworks/finetuning/finetuning.h"

namespace qplan {

// ms-swift's arguments as Megatron's flags, those included that it takes unasked.
TrainerJob job_of_swift_megatron(const Settings& arguments, const Place& place);

// The argument of one of Megatron's flags.
std::string swift_argument(std::string_view flag);

// Megatron's flags of a sentence by ms-swift's names.
std::string swift_spelled(const std::string& sentence);

std::span<const Limit> swift_megatron_limits();

// Arguments of `megatron sft` that say a plan.
std::vector<WrittenOption> swift_megatron_arguments(const Subject& s);

}  // namespace qplan
