#pragma once
// A run's steps beside what was predicted, and by their shape in time what ails them.

#include <cstdint>
#include <deque>
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
  drift,   // the last kWindow are kDrift times the first, and no jump is or was among them
  spikes,  // of the last kWindow steps kSpikes were kSpike times those about them, which had not
           // moved: steps after them were short again
  memory,  // more memory than the interval has
  hang     // no step for kHang times as long as steps take, and kLeastHang at least
};

template <>
struct Words<StepAlert> {
  static constexpr std::string_view what = "alert";
  static constexpr auto table =
      std::to_array<std::pair<StepAlert, std::string_view>>({{StepAlert::slow, "slow"},
                                                             {StepAlert::jump, "jump"},
                                                             {StepAlert::drift, "drift"},
                                                             {StepAlert::spikes, "spikes"},
                                                             {StepAlert::memory, "memory"},
                                                             {StepAlert::hang, "hang"}});
};
std::string_view meaning_of(StepAlert alert);

// Assumed: shares above the jitter of steps that nothing ails, which `qplan run` and published logs
// keep within a few percent.
inline constexpr std::size_t kInARow = 5, kBefore = 10, kWindow = 20, kSpikes = 3;
inline constexpr double kJump = 1.1, kDrift = 1.05, kSpike = 1.3;
// Assumed, too: checkpoints and validation take some steps' time, NCCL gives up after ten minutes.
inline constexpr double kHang = 10;
inline constexpr Seconds kLeastHang{60};

struct Expected {
  Seconds step_low, step_high;
  Bytes allocated_high;  // 0: nobody knows
};

struct Alert {
  StepAlert kind = StepAlert::slow;
  std::int64_t step = 0;
  double value = 0, threshold = 0;  // seconds, bytes, or a count of spikes
  // That what was said after this step is over.
  std::optional<std::int64_t> over_since{};
};

class StepWatch {
 public:
  explicit StepWatch(const Expected& expected) : expected_(expected) {}
  // The step after the last; what is wrong and was not before, and what is over. Between the two
  // lies a margin, so that a run on the threshold says nothing again and again.
  std::vector<Alert> add_step(std::int64_t step, double seconds);
  std::vector<Alert> add_memory(std::int64_t step, Bytes allocated);
  // The mean of a run that told of no step.
  std::vector<Alert> add_mean(double seconds);
  // Nothing was said for `waited` seconds since the step `step`; lines tell of every so many steps.
  // Before the first step nobody knows how long a job takes to start. The next step ends it.
  // `bound`: seconds that are a hang, where somebody says so; 0: as above.
  std::vector<Alert> wait(std::int64_t step, double waited, std::int64_t steps_a_line,
                          double bound = 0);
  // The process was started again: its first steps are warm-up, its memory another.
  void restart();
  [[nodiscard]] const std::vector<double>& seconds() const { return seconds_; }

 private:
  struct Standing {
    StepAlert kind;
    std::int64_t since;
  };
  // Judged after the step `step`; `alerts` takes what there is to say.
  void judge(bool wrong, bool over, const Alert& alert, std::vector<Alert>& alerts);
  void judge_slow(std::int64_t step, std::vector<Alert>& alerts);
  void judge_jump(std::int64_t step, std::vector<Alert>& alerts);
  void judge_drift(std::int64_t step, std::vector<Alert>& alerts);
  void judge_spikes(std::int64_t step, std::vector<Alert>& alerts);

  static constexpr std::size_t kWarmUp = 2;  // compilation, autotuning, first touch

  Expected expected_;
  std::vector<double> seconds_;     // after warm-up
  std::size_t warm_up_ = kWarmUp;   // steps still to pass over
  std::vector<Standing> standing_;  // said, and still so

  // Jumps that were said and are not over, each from a level to a higher one.
  struct Jump {
    double from;
    std::int64_t since;
  };
  std::vector<Jump> jumps_;
  double level_ = 0;              // after the last of them
  bool jumping_ = false;          // its steps still grow, or are among those before
  std::size_t jumped_until_ = 0;  // steps when the last one was over

  double first_ = 0;  // the usual of the first kWindow

  std::size_t level_begin_ = 0;     // the first step at today's level, as far as spikes ask
  std::size_t long_ = 0;            // steps in a row that are not back at it
  std::deque<std::size_t> spikes_;  // places in `seconds_` of the last kWindow
};

}  // namespace qplan
