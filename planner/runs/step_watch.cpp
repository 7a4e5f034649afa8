#include "planner/runs/step_watch.h"

#include <algorithm>
#include <span>

namespace qplan {
namespace {

double middle_of(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  const auto half = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), half, sorted.end());
  return *half;
}

// Those above which three quarters lie: spikes every other step do not move it.
double usual_of(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  const auto quarter = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 4);
  std::nth_element(sorted.begin(), quarter, sorted.end());
  return *quarter;
}

double least_of(std::span<const double> values) {
  return *std::min_element(values.begin(), values.end());
}

double most_of(std::span<const double> values) {
  return *std::max_element(values.begin(), values.end());
}

}  // namespace

std::string_view meaning_of(StepAlert alert) {
  switch (alert) {
    case StepAlert::slow:
      return "every step is slower than predicted: settings that are not the plan's, or a slower "
             "machine than the profile's";
    case StepAlert::jump:
      return "steps became slower at once and stayed so: a straggler, a link that fell back, a "
             "neighbour";
    case StepAlert::drift:
      return "steps become slower little by little: heat, or memory that fragments";
    case StepAlert::spikes:
      return "single steps take long and the others do not: input that is late, checkpoints, "
             "garbage collection";
    case StepAlert::memory:
      return "more memory than predicted: buffers that the plan does not know, or another layout";
    case StepAlert::hang:
      return "no step is told of any more: a collective that waits for a rank that is gone, a lost "
             "node or link, a long checkpoint or validation";
  }
  return "";
}

void StepWatch::judge(bool wrong, bool over, const Alert& alert, std::vector<Alert>& alerts) {
  const auto standing = std::find_if(standing_.begin(), standing_.end(),
                                     [&](const Standing& s) { return s.kind == alert.kind; });
  if (standing == standing_.end()) {
    if (!wrong) return;
    standing_.push_back({alert.kind, alert.step});
    alerts.push_back(alert);
    return;
  }
  if (!over) return;
  alerts.push_back(alert);
  alerts.back().over_since = standing->since;
  standing_.erase(standing);
}

void StepWatch::judge_slow(std::int64_t step, std::vector<Alert>& alerts) {
  const std::span<const double> all(seconds_);
  if (all.size() < kInARow) return;
  const auto last = all.last(kInARow);
  const double high = expected_.step_high.value();
  const bool over = most_of(last) < high / kDrift ||
                    (all.size() >= kWindow && most_of(all.last(kWindow)) <= high);
  judge(least_of(last) > high, over, {StepAlert::slow, step, middle_of(last), high}, alerts);
}

void StepWatch::judge_jump(std::int64_t step, std::vector<Alert>& alerts) {
  const std::span<const double> all(seconds_);
  if (all.size() < kInARow + kBefore) return;
  const auto last = all.last(kInARow);
  const auto before = all.last(kInARow + kBefore).first(kBefore);
  const double now = middle_of(last);
  while (!jumps_.empty() && most_of(last) < kDrift * jumps_.back().from) {
    alerts.push_back(
        {StepAlert::jump, step, now, kDrift * jumps_.back().from, jumps_.back().since});
    jumps_.pop_back();
    jumped_until_ = all.size();
    level_ = now;
    jumping_ = false;
  }
  // Steps that still grow are the same jump.
  if (jumping_) {
    const auto older = all.last(std::min(all.size(), 2 * kBefore)).first(kBefore);
    jumping_ = middle_of(all.last(kBefore)) > kDrift * middle_of(older);
    level_ = std::max(level_, now);
  }
  if (!jumps_.empty() && !jumping_) level_ = std::min(level_, middle_of(all.last(kBefore)));
  const double from = middle_of(before);
  const double bound = kJump * std::max(from, jumps_.empty() ? from : level_);
  if (jumping_ || least_of(last) <= bound) return;
  alerts.push_back({StepAlert::jump, step, now, bound});
  jumps_.push_back({from, step});
  level_ = now;
  jumping_ = true;
}

void StepWatch::judge_drift(std::int64_t step, std::vector<Alert>& alerts) {
  const std::span<const double> all(seconds_);
  if (all.size() == kWindow) first_ = usual_of(all);
  if (all.size() < 2 * kWindow) return;
  const double bound = kDrift * first_, now = usual_of(all.last(kWindow));
  // Over when three quarters of the way are gone back.
  const double near = first_ + (bound - first_) / 4;
  const bool settled = jumps_.empty() && all.size() >= jumped_until_ + kWindow;
  judge(now > bound && settled, now < near, {StepAlert::drift, step, now, bound}, alerts);
}

void StepWatch::judge_spikes(std::int64_t step, std::vector<Alert>& alerts) {
  const std::span<const double> all(seconds_);
  const double last = all.back();
  // Steps of today's level, without those that are not back at it.
  const auto level = all.first(all.size() - 1 - long_).subspan(level_begin_);
  if (level.size() < kInARow) return;
  const double usual = usual_of(level.last(std::min(level.size(), kWindow)));
  const bool peak = last > kSpike * usual;
  if (peak || (long_ > 0 && last > kJump * usual)) {
    ++long_;
    // So many are no spikes: the level has moved.
    if (long_ < kInARow) return;
    level_begin_ = all.size() - long_;
  } else {
    const std::size_t end = all.size() - 1;
    for (std::size_t i = end - long_; i < end; ++i) {
      if (all[i] > kSpike * usual) spikes_.push_back(i);
    }
  }
  long_ = 0;
  while (!spikes_.empty() && spikes_.front() + kWindow < all.size()) spikes_.pop_front();
  judge(
      spikes_.size() >= kSpikes, spikes_.empty(),
      {StepAlert::spikes, step, static_cast<double>(spikes_.size()), static_cast<double>(kSpikes)},
      alerts);
}

std::vector<Alert> StepWatch::add_step(std::int64_t step, double seconds) {
  std::vector<Alert> alerts;
  judge(false, true, {StepAlert::hang, step, seconds, 0}, alerts);
  if (warm_up_ > 0) {
    --warm_up_;
    return alerts;
  }
  seconds_.push_back(seconds);
  judge_slow(step, alerts);
  judge_jump(step, alerts);
  judge_drift(step, alerts);
  judge_spikes(step, alerts);
  return alerts;
}

std::vector<Alert> StepWatch::add_memory(std::int64_t step, Bytes allocated) {
  std::vector<Alert> alerts;
  const Bytes high = expected_.allocated_high;
  // What is logged are peaks, of several ranks: a lower one is another rank's.
  judge(high.value() > 0 && allocated > high, false,
        {StepAlert::memory, step, allocated.value(), high.value()}, alerts);
  return alerts;
}

std::vector<Alert> StepWatch::add_mean(double seconds) {
  std::vector<Alert> alerts;
  seconds_.push_back(seconds);
  const double high = expected_.step_high.value();
  judge(seconds > high, false, {StepAlert::slow, 0, seconds, high}, alerts);
  return alerts;
}

std::vector<Alert> StepWatch::wait(std::int64_t step, double waited, std::int64_t steps_a_line,
                                   double bound) {
  std::vector<Alert> alerts;
  if (bound == 0) {
    const std::span<const double> all(seconds_);
    const double usual = all.empty() ? expected_.step_high.value()
                                     : usual_of(all.last(std::min(all.size(), kWindow)));
    bound = std::max(kHang * usual * static_cast<double>(steps_a_line), kLeastHang.value());
  }
  judge(waited > bound, false, {StepAlert::hang, step, waited, bound}, alerts);
  return alerts;
}

void StepWatch::restart() {
  warm_up_ = kWarmUp;
  std::erase_if(standing_, [](const Standing& s) { return s.kind == StepAlert::memory; });
}

}  // namespace qplan
