#pragma once
// How much memory the host of a job lets it have.

#include <filesystem>

#include "models/units.h"

namespace qplan {

// The machine's memory, or less where a container's control group (version 2 or 1) allows less.
Bytes host_memory_here(const std::filesystem::path& control_group = "/sys/fs/cgroup");

}  // namespace qplan
