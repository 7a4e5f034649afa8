#pragma once
// DeepSpeed's list of hosts: "worker-1 slots=8" a line.

#include <cstdint>
#include <vector>

#include "planner/frameworks/readers/recognise.h"

namespace qplan {

struct Hostfile {
  std::int64_t slots = 0;         // GPUs of all hosts
  std::vector<Finding> findings;  // lines at which DeepSpeed's parser stops
};

Hostfile read_hostfile(const ConfigText& file);

}  // namespace qplan
