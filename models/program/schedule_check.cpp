// Is this a schedule? Every dependency is walked, whoever built it.

#include <fmt/format.h>

#include <map>
#include <set>
#include <utility>

#include "models/program/schedule.h"

namespace qplan {
namespace {

// How far each microbatch has come in each stage, for schedule_fault().
class Progress {
 public:
  explicit Progress(const ScheduleShape& shape) : shape_(shape) {}

  // What is wrong with running `a` next on `rank`, whatever it waits for; "" if nothing.
  [[nodiscard]] std::string fault(int rank, const Action& a) const {
    const bool exists = a.stage >= 0 && a.stage < virtual_stages(shape_) && a.microbatch >= 0 &&
                        a.microbatch < shape_.microbatches;
    const bool own = a.kind == ActionKind::reduce || stage_runs(shape_, a.stage, a.microbatch);
    if (!exists || !own || rank_of_stage(shape_.kind, shape_.pp, a.stage) != rank) {
      return "which is not its own";
    }
    const Done have = done(a.stage, a.microbatch);
    switch (a.kind) {
      case ActionKind::forward:
        return have == Done::nothing ? "" : "twice";
      case ActionKind::backward:
      case ActionKind::backward_input:
        return have == Done::forward ? "" : "out of turn";
      case ActionKind::backward_weight:
        return have == Done::input ? "" : "out of turn";
      case ActionKind::reduce:
        return reduction_fault(a.stage);
    }
    return "";
  }

  // Whether what `a` needs from another stage is there.
  [[nodiscard]] bool ready(const Action& a) const {
    if (a.kind == ActionKind::backward_weight || a.kind == ActionKind::reduce) return true;
    const bool forward = a.kind == ActionKind::forward;
    const int from = forward ? stage_before(shape_, a.stage) : stage_after(shape_, a.stage);
    return from < 0 || done(from, a.microbatch) >= (forward ? Done::forward : Done::input);
  }

  void run(const Action& a) {
    if (a.kind == ActionKind::reduce) {
      reduced_.insert(a.stage);
      return;
    }
    const bool forward = a.kind == ActionKind::forward, half = a.kind == ActionKind::backward_input;
    done_[{a.stage, a.microbatch}] = forward ? Done::forward : half ? Done::input : Done::all;
  }

  [[nodiscard]] bool ended(int stage, int microbatch) const {
    return done(stage, microbatch) == Done::all;
  }

 private:
  [[nodiscard]] std::string reduction_fault(int stage) const {
    for (int mb = 0; mb < shape_.microbatches; ++mb) {
      if (stage_runs(shape_, stage, mb) && !ended(stage, mb)) {
        return fmt::format("before microbatch {} has ended", mb);
      }
    }
    return reduced_.contains(stage) ? "twice" : "";
  }

  enum class Done : std::uint8_t { nothing, forward, input, all };
  [[nodiscard]] Done done(int stage, int microbatch) const {
    const auto it = done_.find({stage, microbatch});
    return it == done_.end() ? Done::nothing : it->second;
  }

  const ScheduleShape& shape_;
  std::map<std::pair<int, int>, Done> done_;
  std::set<int> reduced_;
};

}  // namespace

std::string schedule_fault(const ScheduleShape& s,
                           const std::vector<std::vector<Action>>& schedule) {
  Progress progress(s);
  std::vector<std::size_t> next(schedule.size(), 0);
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t r = 0; r < schedule.size(); ++r) {
      const auto& list = schedule[r];
      while (next[r] < list.size()) {
        // A pair needs what both need before either runs.
        const std::size_t count = list[next[r]].paired ? 2 : 1;
        bool ready = true;
        for (std::size_t i = next[r]; i < next[r] + count; ++i) {
          if (i == list.size() || (i > next[r] && list[i].kind != ActionKind::backward)) {
            return fmt::format("rank {} pairs {} with no backward", r, to_string(list[next[r]]));
          }
          const std::string fault = progress.fault(static_cast<int>(r), list[i]);
          if (!fault.empty())
            return fmt::format("rank {} runs {} {}", r, to_string(list[i]), fault);
          ready = ready && progress.ready(list[i]);
        }
        if (!ready) break;
        for (std::size_t i = 0; i < count; ++i) progress.run(list[next[r]++]);
        moved = true;
      }
    }
  }
  for (std::size_t r = 0; r < schedule.size(); ++r) {
    if (next[r] < schedule[r].size()) {
      return fmt::format("rank {} waits for ever at {}", r, to_string(schedule[r][next[r]]));
    }
  }
  for (int stage = 0; stage < virtual_stages(s); ++stage) {
    for (int mb = 0; mb < s.microbatches; ++mb) {
      if (stage_runs(s, stage, mb) && !progress.ended(stage, mb)) {
        return fmt::format("stage {} never ends microbatch {}", stage, mb);
      }
    }
  }
  return "";
}

}  // namespace qplan
