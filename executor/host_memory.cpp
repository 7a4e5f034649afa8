#include "executor/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace qplan {

Bytes host_memory_here(const std::filesystem::path& control_group) {
  double least =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  for (const char* limit : {"memory.max", "memory/memory.limit_in_bytes"}) {
    double bytes = 0;  // a group without a limit says "max", or more than any machine has
    if (std::ifstream(control_group / limit) >> bytes && bytes > 0) least = std::min(least, bytes);
  }
  return Bytes(least);
}

}  // namespace qplan
