// The arrows of ARCHITECTURE.md: which folder may include which. Includes start at the root of the
// repository, so a wrong arrow is visible in the include line, and here.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Arrows {
  std::string_view folder;
  std::vector<std::string_view> may_include;  // folders, or parts of them
};

// The first row that a file's path begins with counts, so parts stand before the whole.
const std::array<Arrows, 8> kArrows{{
    {"models/", {"models/"}},
    {"costmodel/", {"models/", "costmodel/"}},
    {"planner/rules/", {"models/", "costmodel/", "planner/rules/"}},
    {"planner/", {"models/", "costmodel/", "planner/"}},
    {"kernels/", {"kernels/"}},
    {"executor/cuda/", {"models/", "executor/", "kernels/"}},
    {"executor/", {"models/", "executor/"}},
    {"cli/", {"models/", "costmodel/", "planner/", "executor/", "cli/"}},
}};

bool is_source(const fs::path& path) {
  const auto extension = path.extension();
  return extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".cuh";
}

bool begins_with_any(std::string_view text, const std::vector<std::string_view>& beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](std::string_view b) { return text.substr(0, b.size()) == b; });
}

// What the lines `#include "..."` of a file name.
std::vector<std::string> includes_of(const fs::path& path) {
  constexpr std::string_view kBegin = "#include \"";
  std::vector<std::string> names;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(kBegin, 0) != 0) continue;
    names.push_back(line.substr(kBegin.size(), line.find('"', kBegin.size()) - kBegin.size()));
  }
  return names;
}

}  // namespace

TEST_CASE("each folder includes only what lies below it") {
  const fs::path root = QPLAN_SOURCE_DIR;
  int files = 0, arrows = 0;
  for (const std::string_view top :
       {"models", "costmodel", "planner", "kernels", "executor", "cli"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      ++files;
      const std::string path = fs::relative(entry.path(), root).generic_string();
      const auto row = std::find_if(kArrows.begin(), kArrows.end(),
                                    [&](const Arrows& a) { return path.rfind(a.folder, 0) == 0; });
      REQUIRE(row != kArrows.end());
      for (const std::string& name : includes_of(entry.path())) {
        ++arrows;
        INFO(path, " includes ", name);
        CHECK(begins_with_any(name, row->may_include));
        CHECK(fs::exists(root / name));
      }
    }
  }
  CHECK(files > 300);  // so that an empty walk is no pass
  CHECK(arrows > 500);
}
