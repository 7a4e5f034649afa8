#include "costmodel/fold/pipeline.h"

#include <cmath>

namespace qplan {
namespace {

bool same_symbol(const Action& a, const Action& b) {
  return a.kind == b.kind && a.stage == b.stage && a.paired == b.paired &&
         a.microbatch == b.microbatch;
}

// How often the `length` actions at `at` repeat.
std::int64_t repeats(const std::vector<Action>& list, std::size_t at, std::size_t length) {
  std::int64_t count = 1;
  for (std::size_t i = at + length; i + length <= list.size(); i += length, ++count) {
    for (std::size_t j = 0; j < length; ++j) {
      if (!same_symbol(list[i + j], list[at + j])) return count;
    }
  }
  return count;
}

}  // namespace

std::optional<Seconds> steady_period(const Snapshots& snapshots) {
  // The last period may hold the step's last backward; the three before it must agree.
  if (snapshots.size() < 5) return std::nullopt;
  const std::size_t last = snapshots.size() - 2;
  const auto moved = [&](std::size_t period, std::size_t clock) {
    return snapshots[period][clock] - snapshots[period - 1][clock];
  };
  double most = 0;
  for (std::size_t clock = 0; clock < snapshots[last].size(); ++clock) {
    const double move = moved(last, clock);
    const double rounding = 1e-11 * std::abs(snapshots[last][clock]);
    for (const std::size_t period : {last - 1, last - 2}) {
      if (std::abs(moved(period, clock) - move) > rounding) return std::nullopt;
    }
    most = std::max(most, move);
  }
  return Seconds(most);
}

std::vector<ActionRun> run_length(const std::vector<Action>& with_microbatches) {
  std::vector<Action> actions;
  for (std::size_t i = 0; i < with_microbatches.size(); ++i) {
    const Action& a = with_microbatches[i];
    actions.push_back({.kind = a.kind, .stage = a.stage, .paired = a.paired});
    if (a.paired) actions.back().microbatch = with_microbatches[++i].stage;
  }
  std::vector<ActionRun> runs;
  for (std::size_t at = 0; at < actions.size();) {
    std::size_t best_length = 1;
    std::int64_t best_count = repeats(actions, at, 1);
    for (const std::size_t length : {std::size_t{2}, std::size_t{3}}) {
      if (at + length > actions.size()) break;
      const std::int64_t count = repeats(actions, at, length);
      const auto covered = static_cast<std::size_t>(count) * length;
      if (count > 1 && covered > static_cast<std::size_t>(best_count) * best_length) {
        best_length = length;
        best_count = count;
      }
    }
    ActionRun run;
    for (std::size_t j = 0; j < best_length; ++j) {
      run.pattern.push_back(actions[at + j]);
    }
    run.count = best_count;
    runs.push_back(run);
    at += static_cast<std::size_t>(best_count) * best_length;
  }
  return runs;
}

int microbatches_for_memory(const ScheduleShape& s) {
  int enough = s.microbatches;
  switch (s.kind) {
    case ScheduleKind::gpipe:
      break;  // every microbatch is alive at once
    case ScheduleKind::one_f_one_b:
      enough = s.pp + 1 + (s.pairs ? 1 : 0);
      break;
    // Two groups beyond the warm-up; the remainder of a short last group is kept.
    case ScheduleKind::interleaved:
      enough = 3 * s.pp + s.microbatches % s.pp;
      break;
    case ScheduleKind::zb_h1:
      enough = 2 * s.pp + 1;
      break;
    case ScheduleKind::zbv:
      enough = 4 * s.pp;
      break;
    // The fewest it runs, and a period more: in the middle the first is not paired.
    case ScheduleKind::dualpipe:
      enough = 2 * s.pp + microbatches_per_period(s);
      break;
  }
  return std::min(enough, s.microbatches);
}

Shortened shorten(const ScheduleShape& s, int periods) {
  const SteadyPart full = steady_part(s, 0);
  if (full.count <= periods) return {s, 0};
  Shortened result{s, full.count - periods};
  result.shape.microbatches -= static_cast<int>(result.left_out) * microbatches_per_period(s);
  return result;
}

}  // namespace qplan
