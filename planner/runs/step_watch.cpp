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

// The largest ratio of neighbouring groups' medians.
double steepest(std::span<const double> seconds) {
  double most = 1;
  for (std::size_t i = kInARow; i + kInARow <= seconds.size(); ++i) {
    most = std::max(most, middle_of(seconds.subspan(i, kInARow)) /
                              middle_of(seconds.subspan(i - kInARow, kInARow)));
  }
  return most;
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
  }
  return "";
}

void StepWatch::judge(StepAlert kind, bool wrong, const Alert& alert, std::vector<Alert>& alerts) {
  const auto standing = std::find(standing_.begin(), standing_.end(), kind);
  if (!wrong) {
    if (standing != standing_.end()) standing_.erase(standing);
    return;
  }
  if (standing != standing_.end()) return;
  standing_.push_back(kind);
  alerts.push_back(alert);
}

std::vector<Alert> StepWatch::add_step(std::int64_t step, double seconds) {
  std::vector<Alert> alerts;
  if (warm_up_ > 0) {
    --warm_up_;
    return alerts;
  }
  seconds_.push_back(seconds);
  const std::span<const double> all(seconds_);
  if (all.size() >= kInARow) {
    const auto last = all.last(kInARow);
    const double high = expected_.step_high.value();
    const double least = *std::min_element(last.begin(), last.end());
    judge(StepAlert::slow, least > high, {StepAlert::slow, step, middle_of(last), high}, alerts);
  }
  if (all.size() >= kInARow + kBefore) {
    const auto last = all.last(kInARow);
    const double bound = kJump * middle_of(all.last(kInARow + kBefore).first(kBefore));
    const double least = *std::min_element(last.begin(), last.end());
    judge(StepAlert::jump, least > bound, {StepAlert::jump, step, middle_of(last), bound}, alerts);
  }
  if (all.size() >= 2 * kWindow) {
    const double bound = kDrift * middle_of(all.first(kBefore));
    const double now = middle_of(all.last(kBefore));
    judge(StepAlert::drift, now > bound && steepest(all) < kDrift,
          {StepAlert::drift, step, now, bound}, alerts);
  }
  if (all.size() >= kWindow) {
    const auto last = all.last(kWindow);
    const double typical = middle_of(last);
    const auto spikes =
        std::count_if(last.begin(), last.end(), [&](double s) { return s > kSpike * typical; });
    const bool moved = typical > kJump * middle_of(all);
    judge(StepAlert::spikes, spikes >= static_cast<std::ptrdiff_t>(kSpikes) && !moved,
          {StepAlert::spikes, step, static_cast<double>(spikes), static_cast<double>(kSpikes)},
          alerts);
  }
  return alerts;
}

std::vector<Alert> StepWatch::add_memory(std::int64_t step, Bytes allocated) {
  std::vector<Alert> alerts;
  const Bytes high = expected_.allocated_high;
  judge(StepAlert::memory, high.value() > 0 && allocated > high,
        {StepAlert::memory, step, allocated.value(), high.value()}, alerts);
  return alerts;
}

}  // namespace qplan
