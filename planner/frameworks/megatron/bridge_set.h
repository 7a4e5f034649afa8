#pragma once
// How a value that no program sets is put as one that a program would. Private to Megatron-Bridge's
// readers of keys and of words.

#include <string>
#include <string_view>

#include "planner/frameworks/readers/formats.h"
#include "planner/frameworks/setting.h"

namespace qplan {

inline constexpr std::string_view kBridgeRoot = "cfg.";

// Of a field ("optimizer.exp_avg_dtype"), whose formats have several names.
PythonArgument bridge_argument(const std::string& field, const Setting& setting);

void set_bridge_field(const std::string& field, PythonArgument value, PythonText& text);

// "model" of "model.x".
std::string bridge_section(const std::string& key);

}  // namespace qplan
