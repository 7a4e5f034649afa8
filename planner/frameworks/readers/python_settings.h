#pragma once
// Settings of the frameworks that are configured in Python: torchtitan's functions and calls of
// FSDP. (Megatron-Bridge's are in bridge.h.)

#include "planner/frameworks/readers/formats.h"
#include "planner/frameworks/readers/recognise.h"

namespace qplan {

// Keywords of torchtitan's configurations, and assignments to them: "parallelism.x". Empty: none.
Settings torchtitan_settings(const PythonText& text);

// Keywords of FSDP(...): "FSDP.sharding_strategy", also those of a dictionary in the file, which is
// read by its keys. Empty: FSDP is not called.
Settings fsdp_settings(const PythonText& text, const ConfigText& file);

}  // namespace qplan
