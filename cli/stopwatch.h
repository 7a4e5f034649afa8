#pragma once
// How long an answer took; said only with --timing, so that output is the same on every run.

#include <chrono>

namespace qplan {

class Stopwatch {
 public:
  [[nodiscard]] double elapsed_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace qplan
