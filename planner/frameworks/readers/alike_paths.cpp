#include "planner/frameworks/readers/alike_paths.h"

namespace qplan {

std::size_t folders_alike(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::size_t alike = 0;
  for (auto x = a.end(), y = b.end(); x != a.begin() && y != b.begin(); ++alike) {
    if (*--x != *--y) break;
  }
  return alike;
}

}  // namespace qplan
