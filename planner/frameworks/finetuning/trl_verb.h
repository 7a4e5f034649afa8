#pragma once
// What TRL's YAML trains by, where no command says it.

#include <string>

#include "planner/frameworks/setting.h"

namespace qplan {

// By the fields that one command's class alone has: "dpo", "grpo", ...; empty: none is there.
std::string trl_verb_of(const Settings& yaml);

}  // namespace qplan
