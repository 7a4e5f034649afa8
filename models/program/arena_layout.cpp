#include "models/program/arena_layout.h"

#include <algorithm>
#include <iterator>

#include "models/error.h"

namespace qplan {

std::int64_t FirstFit::allocate(std::int64_t bytes) {
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    const auto [begin, size] = *gap;
    if (size < bytes) continue;
    gaps_.erase(gap);
    if (size > bytes) gaps_.emplace(begin + bytes, size - bytes);
    return begin;
  }
  const std::int64_t begin = extent_;
  extent_ += bytes;
  return begin;
}

void FirstFit::release(std::int64_t offset, std::int64_t bytes) {
  if (bytes == 0) return;
  const auto [it, added] = gaps_.emplace(offset, bytes);
  QPLAN_CHECK(added, "a buffer is released once");
  const auto next = std::next(it);
  if (next != gaps_.end() && offset + bytes == next->first) {
    it->second += next->second;
    gaps_.erase(next);
  }
  if (it == gaps_.begin()) return;
  const auto before = std::prev(it);
  if (before->first + before->second == offset) {
    before->second += it->second;
    gaps_.erase(it);
  }
}

std::int64_t ArenaLayout::allocate(std::int64_t bytes) {
  live_ += bytes;
  peak_ = std::max(peak_, live_);
  return places_.allocate(bytes);
}

void ArenaLayout::release(std::int64_t offset, std::int64_t bytes) {
  live_ -= bytes;
  places_.release(offset, bytes);
}

}  // namespace qplan
