#pragma once
// Settings of frameworks that are configured in Python: torchtitan's functions. (Megatron-Bridge's
// are in bridge.h, those of a program of one's own in own_script.h.)

#include <string>

#include "planner/frameworks/readers/formats.h"
#include "planner/frameworks/readers/recognise.h"

namespace qplan {

// Keywords of torchtitan's configurations, and assignments to them: "parallelism.x". Empty: none.
Settings torchtitan_settings(const PythonText& text);

// "C" of "a.b.C(...)".
std::string callee_of(const PythonCall& call);

// An argument of a call, or what is assigned, as a setting of this key.
Setting setting_of(std::string key, const PythonArgument& argument);

}  // namespace qplan
