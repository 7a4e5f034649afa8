#pragma once
// The files of the house, as its tests read them.

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace qplan::house {

namespace fs = std::filesystem;

inline const fs::path kRoot = QPLAN_SOURCE_DIR;

inline std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace qplan::house
