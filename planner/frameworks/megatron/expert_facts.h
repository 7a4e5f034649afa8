#pragma once
// The model's experts as Megatron's flags: the last of megatron_facts().

#include <span>

#include "planner/frameworks/option.h"

namespace qplan::megatron {

std::span<const Fact> expert_facts();

}  // namespace qplan::megatron
