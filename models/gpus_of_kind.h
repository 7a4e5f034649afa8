#pragma once

#include <cstdint>
#include <string>

namespace qplan {

// How many GPUs of one kind a cluster of several has.
struct GpusOfKind {
  std::string name;  // of the machine
  std::int64_t gpus = 0;
  int gpus_per_node = 0;
};

}  // namespace qplan
