#pragma once
// Settings of frameworks that are configured in Python: torchtitan's functions. (Megatron-Bridge's
// are in bridge.h, those of a program of one's own in own_script.h.)

#include <string>
#include <string_view>

#include "planner/frameworks/readers/formats.h"
#include "planner/frameworks/readers/recognise.h"

namespace qplan {

// Keywords of torchtitan's configurations, and assignments to them: "parallelism.x". Empty: none.
Settings torchtitan_settings(const PythonText& text);

// The same of one function, and of those that it calls: the one of this name, else the first that
// makes a configuration where several make different ones.
struct TitanFunction {
  Settings settings;
  std::string name;      // empty: no function makes it
  bool several = false;  // nobody names it, and others make others
};
// The calls of other configurations are marked in `text`.
TitanFunction torchtitan_function(std::string_view file, PythonText& text, std::string_view named);

// "C" of "a.b.C(...)".
std::string callee_of(const PythonCall& call);

// An argument of a call, or what is assigned, as a setting of this key.
Setting setting_of(std::string key, const PythonArgument& argument);

}  // namespace qplan
