#pragma once
// accelerate's yaml: what starts the job, and its keys by their whole names.

#include <string>

#include "planner/frameworks/setting.h"

namespace qplan {

// accelerate's own words for it.
struct DistributedType {
  const Setting* said = nullptr;  // by its name, or by one that is a slip of it; null: nobody says
  // What it says, or what is certainly meant where no type is called so: one that is spelled alike,
  // unless the sections say another; else the one whose section the file has. Empty: it is open.
  std::string meant;
};
DistributedType distributed_type_of(const Settings& yaml);

// Whether a job of that type is judged here: one process, DDP, FSDP or DeepSpeed, on GPUs.
bool is_read_type(const std::string& distributed_type);

// "fsdp_config.version": accelerate puts "fsdp_" before what has it not
// (commands/launch.py:1262).
Settings with_whole_names(const Settings& yaml);

}  // namespace qplan
