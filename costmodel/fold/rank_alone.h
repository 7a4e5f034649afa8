#pragma once
// What a step takes at least, by what each pipeline rank does: its actions in their order, as if
// nothing made it wait but its own streams, its first input, and behind its last gradient the
// ranks that wait for that. Each action once: several times cheaper than the simulation, and with
// the ends of the step in it that step_bound.cpp knows nothing of.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "costmodel/fold/pipeline.h"

namespace qplan {

// From one gradient norm, which joins all ranks, to the next. Not for passes side by side, which
// wait for each other.
template <StepRunner R>
class RankAlone {
 public:
  static constexpr int kPeriods = 3;  // that are run at either end of a long steady part

  // Of a schedule that may have been shortened to twice these periods, whose actions these are.
  RankAlone(R& runner, const Shortened& schedule, const std::vector<std::vector<Action>>& actions,
            const PipelineLinks& links)
      : runner_(runner), schedule_(schedule), actions_(actions), links_(links) {
    bring_inputs();
    if (backward_form(schedule.shape.kind) == BackwardForm::whole) take_gradients_back();
  }

  Seconds least(int rank) {
    const std::span<const Action> actions = actions_of(rank);
    StreamClocks clocks = begun(rank);
    clocks(kCompute) += MaxPlus(inputs_[static_cast<std::size_t>(rank)]);
    const SteadyPart steady = steady_part(schedule_.shape, rank);
    const auto period = static_cast<std::size_t>(steady.period);
    const auto middle = static_cast<std::size_t>(steady.begin) + kPeriods * period;
    std::optional<Seconds> sent_back;  // the last gradient that the rank before waits for
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (i == middle && schedule_.left_out > 0) {
        clocks(kCompute) *= MaxPlus(took(rank, actions.subspan(i, period)) *
                                    static_cast<double>(schedule_.left_out));
      }
      runner_.run(rank, actions[i], clocks);
      if (is_sent_back(rank, actions[i])) sent_back = compute(clocks);
    }
    runner_.before_norm(rank, clocks);
    if (behind_.empty() || rank == 0) return compute(clocks);
    return std::max(compute(clocks), *sent_back + behind_[static_cast<std::size_t>(rank)]);
  }

 private:
  static constexpr int kCompute = index(Stream::compute);

  [[nodiscard]] std::span<const Action> actions_of(int rank) const {
    return actions_[static_cast<std::size_t>(rank)];
  }
  // Whether it makes a gradient of the rank's first stage.
  static bool is_sent_back(int rank, const Action& a) {
    return a.kind == ActionKind::backward && a.stage == rank;
  }
  static Seconds compute(const StreamClocks& clocks) { return clocks(kCompute).seconds(); }
  // Nothing is known of the other streams, and nothing waits for them.
  static StreamClocks compute_at_zero() {
    StreamClocks clocks = StreamClocks::Constant(MaxPlus(0));
    clocks(kCompute) = MaxPlus(Seconds(0));
    return clocks;
  }
  StreamClocks begun(int rank) {
    StreamClocks clocks = compute_at_zero();
    runner_.update(rank, clocks);
    runner_.begin(rank, clocks);
    return clocks;
  }
  Seconds took(int rank, std::span<const Action> actions) {
    StreamClocks clocks = compute_at_zero();
    for (const Action& a : actions) runner_.run(rank, a, clocks);
    return compute(clocks);
  }

  // Rank r's first input is there once stages 0 .. r-1 have run the first microbatch forward.
  void bring_inputs() {
    Seconds now = compute(begun(0));
    for (int r = 0; r < schedule_.shape.pp; ++r) {
      inputs_.push_back(now);
      if (r + 1 == schedule_.shape.pp) break;
      now += took(r, actions_of(r).first(1)) + links_.send_between(r, r + 1);
    }
  }
  // Behind the last gradient that rank r sends back, stages r-1 .. 0 run that microbatch backward,
  // and the first rank goes on to the norm.
  void take_gradients_back() {
    StreamClocks end = compute_at_zero();
    for (const Action& a : from_last_backward(0)) runner_.run(0, a, end);
    runner_.before_norm(0, end);
    Seconds behind = compute(end);
    behind_.push_back(Seconds(0));  // counted with its own actions
    for (int r = 1; r < schedule_.shape.pp; ++r) {
      behind_.push_back(behind + links_.send_between(r - 1, r));
      behind = behind_.back() + took(r, from_last_backward(r).first(1));
    }
  }
  // The last of the rank's first stage, and what the rank does after it.
  std::span<const Action> from_last_backward(int rank) const {
    const std::span<const Action> actions = actions_of(rank);
    std::size_t at = actions.size() - 1;
    while (!is_sent_back(rank, actions[at])) --at;
    return actions.subspan(at);
  }

  R& runner_;
  const Shortened& schedule_;
  const std::vector<std::vector<Action>>& actions_;
  const PipelineLinks& links_;
  std::vector<Seconds> inputs_;  // of each rank
  std::vector<Seconds> behind_;  // ... or empty: nothing is known
};

}  // namespace qplan
