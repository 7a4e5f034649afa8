#pragma once
// "--deepspeed" alone: a switch of programs whose parser is DeepSpeed's own.

#include "planner/frameworks/readers/job_files.h"

namespace qplan {

// Whether a program's "--deepspeed" is the switch that deepspeed.add_config_arguments adds, and not
// a Trainer's path of a ds_config.json, which nothing follows.
bool is_switch_of_deepspeed(const ConfigPart& part, const Setting& setting);

}  // namespace qplan
