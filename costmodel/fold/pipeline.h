#pragma once
// The schedule simulated action by action: clocks of every pipeline rank, messages between them,
// the step's end. The same driver serves the fold (a matrix per action) and the replay (op by op).

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <optional>
#include <vector>

#include "costmodel/evaluate.h"
#include "costmodel/fold/streams.h"
#include "models/program/schedule.h"

namespace qplan {

// What the driver asks of a fold or a replay: move one rank's clocks through a piece of program.
template <class R>
concept StepRunner = requires(R runner, int rank, const Action& action, StreamClocks& clocks) {
  runner.run(rank, action, clocks);
  runner.run_pair(rank, action, action, clocks);  // a forward beside a backward
  runner.begin(rank, clocks);                     // gradients become 0
  runner.before_norm(rank, clocks);  // reductions that were not overlapped, the local norm
  runner.update(rank, clocks);       // optimizer, parameter gathers
};

// For every steady period, when it was over: each rank's clocks as the rank ends it, and those of
// the links out of its stages.
using Snapshots = std::vector<std::vector<double>>;

// What one period adds to the fastest clock, if the last few periods moved every clock alike. (Not
// each by the same: a host that only launches runs ahead, and an unused stream stands still.)
std::optional<Seconds> steady_period(const Snapshots& snapshots);

// Clocks and messages in flight; a step leaves them ready for the next.
class PipelineState {
 public:
  PipelineState(const ScheduleShape& shape, int stages)
      : shape_(shape),
        stages_(stages),
        clocks(static_cast<std::size_t>(shape.pp), clocks_at_zero()),
        forward_edge_(static_cast<std::size_t>(stages), Seconds(0)),
        backward_edge_(static_cast<std::size_t>(stages), Seconds(0)) {
    for (int s = 0; s < stages; ++s) {
      before_.push_back(stage_before(shape, s));
      after_.push_back(stage_after(shape, s));
      rank_of_.push_back(rank_of_stage(shape.kind, shape.pp, s));
    }
  }

  // One step; returns when its last rank is done. `snapshots`, if given, receives every steady
  // period's end.
  template <StepRunner R>
  Seconds step(R& runner, const std::vector<std::vector<Action>>& actions,
               const PipelineLinks& links, Snapshots* snapshots = nullptr);

 private:
  [[nodiscard]] std::size_t cell(int stage, int microbatch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(shape_.microbatches) +
           static_cast<std::size_t>(microbatch);
  }

  ScheduleShape shape_;
  int stages_;
  std::vector<int> before_, after_;  // of each stage: its neighbours, or -1
  std::vector<int> rank_of_;         // of each stage: who has it

 public:
  std::vector<StreamClocks> clocks;  // of each pipeline rank

 private:
  std::vector<Seconds> forward_edge_, backward_edge_;  // when the link out of a stage becomes free
};

template <StepRunner R>
Seconds PipelineState::step(R& runner, const std::vector<std::vector<Action>>& actions,
                            const PipelineLinks& links, Snapshots* snapshots) {
  constexpr double kNotYet = -1;
  const int compute = index(Stream::compute), host = index(Stream::host);
  std::vector<double> forward(cell(stages_, 0), kNotYet), backward(cell(stages_, 0), kNotYet);
  std::vector<std::size_t> next(actions.size(), 0);
  std::vector<SteadyPart> steady;
  for (std::size_t r = 0; r < actions.size(); ++r) {
    steady.push_back(steady_part(shape_, static_cast<int>(r)));
    clocks[r](host) *= MaxPlus(links.step_overhead);
    runner.begin(static_cast<int>(r), clocks[r]);
  }
  const auto wait = [&](StreamClocks& state, MaxPlus until) {
    state(host) = (state(host) + until) * MaxPlus(links.stall);
  };
  const auto send = [&](StreamClocks& state, int from, int to, std::vector<Seconds>& edges,
                        double& arrival) {
    const Seconds ready = state(compute).seconds();
    const int here = rank_of_[static_cast<std::size_t>(from)];
    const int there = rank_of_[static_cast<std::size_t>(to)];
    if (here == there) {
      arrival = ready.value();
      return;
    }
    Seconds& edge = edges[static_cast<std::size_t>(from)];
    edge = std::max(edge, ready) + links.send_between(here, there);
    arrival = edge.value();
    if (!links.overlapped) state(compute) += MaxPlus(edge);
    if (links.host_waits) wait(state, state(compute));
  };
  const auto receive = [&](double arrival, StreamClocks& state) {
    if (arrival <= 0) return;
    state(compute) += MaxPlus(Seconds(arrival));
    if (links.host_waits) wait(state, MaxPlus(Seconds(arrival)));
  };
  // A backward that gets its output's gradient from the next stage and makes the previous one's.
  const auto makes_gradient = [](const Action& a) {
    return a.kind == ActionKind::backward || a.kind == ActionKind::backward_input;
  };
  // When what an action needs from another stage arrived: 0 if nothing is needed, kNotYet if it has
  // not.
  const auto arrival_of = [&](const Action& a) {
    const auto stage = static_cast<std::size_t>(a.stage);
    if (a.kind == ActionKind::forward) {
      return before_[stage] < 0 ? 0.0 : forward[cell(a.stage, a.microbatch)];
    }
    if (!makes_gradient(a) || after_[stage] < 0) return 0.0;
    return backward[cell(a.stage, a.microbatch)];
  };
  const auto send_result = [&](const Action& a, StreamClocks& state) {
    const auto stage = static_cast<std::size_t>(a.stage);
    if (a.kind == ActionKind::forward) {
      const int to = after_[stage];
      if (to >= 0) send(state, a.stage, to, forward_edge_, forward[cell(to, a.microbatch)]);
    } else if (makes_gradient(a)) {
      const int to = before_[stage];
      if (to >= 0) send(state, a.stage, to, backward_edge_, backward[cell(to, a.microbatch)]);
    }
  };
  const auto snapshot = [&](std::size_t rank, const StreamClocks& state) {
    if (snapshots == nullptr || steady[rank].count == 0) return;
    const auto done = static_cast<std::int64_t>(next[rank]) - steady[rank].begin;
    const std::int64_t period = steady[rank].period;
    if (done <= 0 || done % period != 0 || done / period > steady[rank].count) return;
    const auto place = static_cast<std::size_t>(done / period - 1);
    if (snapshots->size() <= place) snapshots->resize(place + 1);
    auto& row = (*snapshots)[place];
    const std::size_t stages = forward_edge_.size(), links_at = clocks.size() * kStreamCount;
    row.resize(links_at + 2 * stages);
    for (int s = 0; s < kStreamCount; ++s) {
      row[rank * kStreamCount + static_cast<std::size_t>(s)] = state(s).seconds().value();
    }
    for (std::size_t s = 0; s < stages; ++s) {
      if (static_cast<std::size_t>(rank_of_[s]) != rank) continue;
      row[links_at + s] = forward_edge_[s].value();
      row[links_at + stages + s] = backward_edge_[s].value();
    }
  };
  std::size_t left = 0;
  for (const auto& list : actions) left += list.size();
  bool moved = true;
  while (left > 0 && moved) {
    moved = false;
    // Last rank first: in steady state a rank needs what the next one did in the same period.
    for (std::size_t i = actions.size(); i-- > 0;) {
      StreamClocks& state = clocks[i];
      const auto rank = static_cast<int>(i);
      while (next[i] < actions[i].size()) {
        const Action& a = actions[i][next[i]];
        double arrival = arrival_of(a);
        if (arrival == kNotYet) break;
        const std::size_t together = a.paired ? 2 : 1;
        if (a.paired) {
          const Action& b = actions[i][next[i] + 1];
          if (arrival_of(b) == kNotYet) break;
          arrival = std::max(arrival, arrival_of(b));
          receive(arrival, state);
          runner.run_pair(rank, a, b, state);
          send_result(a, state);
          send_result(b, state);
        } else {
          receive(arrival, state);
          runner.run(rank, a, state);
          send_result(a, state);
        }
        next[i] += together;
        left -= together;
        moved = true;
        snapshot(i, state);
      }
    }
  }
  QPLAN_CHECK(left == 0, "a pipeline schedule must not deadlock");
  // The gradient norm joins all ranks.
  MaxPlus joined(0);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    runner.before_norm(static_cast<int>(i), clocks[i]);
    joined += clocks[i](compute);
  }
  Seconds end;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    clocks[i](compute) += joined;
    runner.update(static_cast<int>(i), clocks[i]);
    for (int s = 0; s < kStreamCount; ++s) end = std::max(end, clocks[i](s).seconds());
  }
  return end;
}

// One rank's actions in run-length form: `pattern` repeated `count` times. For memory, which
// follows program order and needs no clock.
struct ActionRun {
  // Microbatch numbers and edges dropped. A pair is one entry: its forward, with the stage of its
  // backward in place of the microbatch.
  std::vector<Action> pattern;
  std::int64_t count = 1;
};
std::vector<ActionRun> run_length(const std::vector<Action>& actions);

// As many microbatches as show every memory peak of the schedule: more repeat the steady period.
int microbatches_for_memory(const ScheduleShape& shape);

// The shortest schedule of the same shape whose steady part still has `periods` periods, and how
// many periods of the real one it leaves out.
struct Shortened {
  ScheduleShape shape;
  std::int64_t left_out = 0;
};
Shortened shorten(const ScheduleShape& shape, int periods);

}  // namespace qplan
