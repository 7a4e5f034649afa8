#pragma once
// Files by paths whose begin may be of another machine, or known only to a run. Private to the
// readers.

#include <cstddef>
#include <filesystem>
#include <span>

namespace qplan {

// How many parts at the end of two paths are the same: 0 if the files' names differ.
std::size_t folders_alike(const std::filesystem::path& a, const std::filesystem::path& b);

// Of these the first whose path ends most like `path`; null: no file has that name. An empty path
// is no file's.
template <class T, class PathOf>
T* most_alike(std::span<T> all, const std::filesystem::path& path, const PathOf& path_of) {
  T* best = nullptr;
  std::size_t most = 0;
  for (T& one : all) {
    const std::size_t alike = folders_alike(path_of(one), path);
    if (alike <= most) continue;
    best = &one;
    most = alike;
  }
  return best;
}

}  // namespace qplan
