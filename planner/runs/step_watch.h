#pragma once
// A run's steps beside what was predicted, and by their shape in time what ails them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/units.h"
#include "models/words.h"

namespace qplan {

// The rules; lengths and shares are of the constants below.
enum class StepAlert : std::uint8_t {
  slow,    // kInARow steps in a row are above the interval
  jump,    // the last kInARow steps are all longer than kJump times the kBefore before them
  drift,   // the last kBefore are kDrift times the first, and no part of the way was a jump
  spikes,  // kSpikes of the last kWindow steps are kSpike times their median, which has not moved
  memory   // more memory than the interval has
};

template <>
struct Words<StepAlert> {
  static constexpr std::string_view what = "alert";
  static constexpr auto table =
      std::to_array<std::pair<StepAlert, std::string_view>>({{StepAlert::slow, "slow"},
                                                             {StepAlert::jump, "jump"},
                                                             {StepAlert::drift, "drift"},
                                                             {StepAlert::spikes, "spikes"},
                                                             {StepAlert::memory, "memory"}});
};
std::string_view meaning_of(StepAlert alert);

// Assumed: shares above the jitter of steps that nothing ails, which `qplan run` and published logs
// keep within a few percent.
inline constexpr std::size_t kInARow = 5, kBefore = 10, kWindow = 20, kSpikes = 3;
inline constexpr double kJump = 1.1, kDrift = 1.05, kSpike = 1.3;

struct Expected {
  Seconds step_low, step_high;
  Bytes allocated_high;  // 0: nobody knows
};

struct Alert {
  StepAlert kind = StepAlert::slow;
  std::int64_t step = 0;
  double value = 0, threshold = 0;  // seconds, bytes, or a count of spikes
};

class StepWatch {
 public:
  explicit StepWatch(const Expected& expected) : expected_(expected) {}
  // The step after the last; what is wrong for the first time, or again after it was not.
  std::vector<Alert> add_step(std::int64_t step, double seconds);
  std::vector<Alert> add_memory(std::int64_t step, Bytes allocated);
  [[nodiscard]] const std::vector<double>& seconds() const { return seconds_; }

 private:
  void judge(StepAlert kind, bool wrong, const Alert& alert, std::vector<Alert>& alerts);

  Expected expected_;
  std::vector<double> seconds_;  // after warm-up
  std::size_t warm_up_ = 2;      // steps still to pass over: compilation, autotuning, first touch
  std::vector<StepAlert> standing_;  // said, and still so
};

}  // namespace qplan
