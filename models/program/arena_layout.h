#pragma once
// Where a rank's buffers lie: one stretch of memory, laid out in program order.

#include <cstdint>
#include <map>

namespace qplan {

// Places in one stretch of memory: the lowest gap that is large enough. Sizes are multiples of 256.
class FirstFit {
 public:
  std::int64_t allocate(std::int64_t bytes);
  void release(std::int64_t offset, std::int64_t bytes);
  [[nodiscard]] std::int64_t extent() const { return extent_; }

 private:
  std::map<std::int64_t, std::int64_t> gaps_;  // begin -> size, below extent_
  std::int64_t extent_ = 0;
};

// The same, and how much of it is in use at most.
class ArenaLayout {
 public:
  std::int64_t allocate(std::int64_t bytes);
  void release(std::int64_t offset, std::int64_t bytes);
  [[nodiscard]] std::int64_t live() const { return live_; }       // bytes allocated now
  [[nodiscard]] std::int64_t live_peak() const { return peak_; }  // ... at once, at most
  [[nodiscard]] std::int64_t extent() const { return places_.extent(); }

 private:
  FirstFit places_;
  std::int64_t live_ = 0, peak_ = 0;
};

}  // namespace qplan
