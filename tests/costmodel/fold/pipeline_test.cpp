#include "costmodel/fold/pipeline.h"

#include <doctest/doctest.h>

#include <array>

using namespace qplan;

namespace {

// Every forward takes `forward`, input gradient `input`, weight gradient `weight`.
struct UnitRunner {
  double forward = 1, input = 1, weight = 1, reduction = 0;

  // Beside compute, after what has been computed so far.
  void clocks_after_reduction(StreamClocks& clocks) const {
    MaxPlus& reduce = clocks(index(Stream::reduce_comm));
    reduce += clocks(index(Stream::compute));
    reduce *= MaxPlus(Seconds(reduction));
  }

  void run(int, const Action& action, StreamClocks& clocks) const {
    double time = 0;
    switch (action.kind) {
      case ActionKind::forward:
        time = forward;
        break;
      case ActionKind::backward:
        time = input + weight;
        break;
      case ActionKind::backward_input:
        time = input;
        break;
      case ActionKind::backward_weight:
        time = weight;
        break;
      case ActionKind::reduce:
        return clocks_after_reduction(clocks);
    }
    clocks(index(Stream::compute)) *= MaxPlus(Seconds(time));
  }
  // As long as the longer of the two: a forward hidden beside a backward.
  void run_pair(int, const Action&, const Action&, StreamClocks& clocks) const {
    clocks(index(Stream::compute)) *= MaxPlus(Seconds(std::max(forward, input + weight)));
  }
  void begin(int, StreamClocks&) const {}
  void before_norm(int, StreamClocks& clocks) const { join_all(clocks); }
  void update(int, StreamClocks&) const {}
};

double step_time(const ScheduleShape& s, UnitRunner runner, PipelineLinks links) {
  PipelineState state(s, virtual_stages(s));
  return state.step(runner, build_schedule(s), links).value();
}

// Time that the last rank to end did not work.
double bubble(const ScheduleShape& s, UnitRunner runner = {}) {
  const double work = static_cast<double>(microbatches_of_stage(s) * virtual_stages(s) / s.pp) *
                      (runner.forward + runner.input + runner.weight);
  return step_time(s, runner, {.send = Seconds(0), .overlapped = true, .step_overhead = {}}) - work;
}

}  // namespace

// Bubbles of docs/reference/physics.md 4, in units of one forward of a stage (or of a chunk).
TEST_CASE("gpipe and 1F1B wait (pp - 1)(F + B)") {
  for (int pp = 1; pp <= 6; ++pp) {
    for (const int m : {pp, 2 * pp, 17}) {
      CHECK(bubble({ScheduleKind::gpipe, pp, 1, m}) == 3 * (pp - 1));
      CHECK(bubble({ScheduleKind::one_f_one_b, pp, 1, m}) == 3 * (pp - 1));
    }
  }
}

TEST_CASE("interleaving over vpp chunks waits as long as one chunk of 1F1B") {
  for (const int pp : {2, 3, 4, 8}) {
    for (const int vpp : {2, 3, 4}) {
      // Chunks take one unit, stages vpp: (pp - 1)(F + B)/vpp of a stage.
      CHECK(bubble({ScheduleKind::interleaved, pp, vpp, 3 * pp}) == 3 * (pp - 1));
    }
  }
}

TEST_CASE("zb-h1 waits (pp - 1)(F + B - W)") {
  for (int pp = 1; pp <= 8; ++pp) {
    CHECK(bubble({ScheduleKind::zb_h1, pp, 1, 3 * pp}) == pp - 1);
    // Where W is shorter than F and B: (pp - 1)(3 + 3 - 2).
    CHECK(bubble({ScheduleKind::zb_h1, pp, 1, 3 * pp}, {3, 3, 2}) == 4 * (pp - 1));
  }
}

TEST_CASE("zbv waits no longer than zb-h1, for the same stage") {
  for (int pp = 2; pp <= 8; ++pp) {
    const double chunk = bubble({ScheduleKind::zbv, pp, 2, 4 * pp});
    const double stage = 2 * bubble({ScheduleKind::zb_h1, pp, 1, 4 * pp});  // a stage: two chunks
    CAPTURE(pp);
    CAPTURE(chunk);
    CHECK(chunk <= stage);
    CHECK(chunk >= pp - 1);  // the last rank starts that late
  }
}

TEST_CASE("dualpipe's middle waits (pp/2 - 1)(F&B + B - 3W), and its ends no longer") {
  // DualPipe 3da1bbe, README; B is the whole backward, F&B a pair.
  struct Busy {
    double forward, input, weight, pair;
    std::vector<double> busy;
    void add(int rank, double time, StreamClocks& clocks) {
      busy[static_cast<std::size_t>(rank)] += time;
      clocks(index(Stream::compute)) *= MaxPlus(Seconds(time));
    }
    void run(int rank, const Action& action, StreamClocks& clocks) {
      const double backward = input + weight;
      add(rank,
          action.kind == ActionKind::forward          ? forward
          : action.kind == ActionKind::backward       ? backward
          : action.kind == ActionKind::backward_input ? input
                                                      : weight,
          clocks);
    }
    void run_pair(int rank, const Action&, const Action&, StreamClocks& clocks) {
      add(rank, pair, clocks);
    }
    void begin(int, StreamClocks&) const {}
    void before_norm(int, StreamClocks&) const {}
    void update(int, StreamClocks&) const {}
  };
  const PipelineLinks free_links{.send = Seconds(0), .overlapped = true, .step_overhead = {}};
  for (const int pp : {2, 4, 6, 8, 16}) {
    for (const int m : {2 * pp, 2 * pp + 2, 5 * pp}) {
      // Nothing hidden, a whole forward hidden, and forwards longer than weight gradients.
      for (const auto& [f, i, w, pair] :
           {std::array{1., 1., 1., 3.}, std::array{1., 1., 1., 2.}, std::array{3., 3., 2., 7.}}) {
        const ScheduleShape s{ScheduleKind::dualpipe, pp, 1, m, true};
        Busy runner{f, i, w, pair, std::vector<double>(static_cast<std::size_t>(pp))};
        PipelineState state(s, virtual_stages(s));
        const double end = state.step(runner, build_schedule(s), free_links).value();
        const double formula = (pp / 2 - 1) * (pair + (i + w) - 3 * w);
        CAPTURE(pp);
        CAPTURE(m);
        CAPTURE(pair);
        for (std::size_t r = 0; r < runner.busy.size(); ++r) {
          const double idle = end - runner.busy[r];
          const bool middle = r == runner.busy.size() / 2 || r + 1 == runner.busy.size() / 2;
          CHECK((middle ? idle == formula : idle <= formula));
          // With nothing hidden all ranks work, hence wait, alike.
          if (pair == f + i + w) CHECK(idle == formula);
        }
      }
    }
  }
}

TEST_CASE("dualpipe's mirrored ranks keep the same time, so copies reduce without waiting") {
  // Work that depends on the piece of the model, not on which copy runs it.
  struct ByPiece {
    int pp;
    void run(int, const Action& a, StreamClocks& clocks) const {
      const int kind = static_cast<int>(a.kind);
      clocks(index(Stream::compute)) *= MaxPlus(Seconds(7 + a.stage % pp * 3 + kind));
    }
    void run_pair(int rank, const Action& f, const Action& b, StreamClocks& clocks) const {
      run(rank, f, clocks);
      run(rank, b, clocks);
    }
    void begin(int, StreamClocks&) const {}
    void before_norm(int, StreamClocks&) const {}
    void update(int, StreamClocks&) const {}
  };
  for (const int pp : {2, 4, 8}) {
    const ScheduleShape s{ScheduleKind::dualpipe, pp, 1, 3 * pp, true};
    ByPiece runner{pp};
    PipelineState state(s, virtual_stages(s));
    const PipelineLinks links{.send = Seconds(2), .overlapped = true, .step_overhead = {}};
    state.step(runner, build_schedule(s), links);
    for (std::size_t r = 0; r < state.clocks.size(); ++r) {
      CHECK((state.clocks[r] == state.clocks[state.clocks.size() - 1 - r]));
    }
  }
}

TEST_CASE("on one rank pairs hide every forward but the warm-up's beside a backward") {
  CHECK(bubble({ScheduleKind::one_f_one_b, 1, 1, 10, true}) == 1 + 2 * 10 - 3 * 10);
}

TEST_CASE("interleaved pairs hide forwards too, whatever the depth") {
  for (const int pp : {2, 3, 4, 8}) {
    for (const int vpp : {2, 3}) {
      const ScheduleShape plain{ScheduleKind::interleaved, pp, vpp, 8 * pp};
      ScheduleShape pairs = plain;
      pairs.pairs = true;
      CAPTURE(pp);
      CAPTURE(vpp);
      // Of 8 pp vpp chunks' 3 units each, a third is hidden but for warm-up and cool-down.
      CHECK(bubble(pairs) < bubble(plain) - 4 * pp * vpp);
    }
  }
}

// A pair needs what its neighbour's pair made just before, and the neighbour's next pair needs this
// one: ranks of plain 1F1B take turns. That is why Megatron overlaps experts only with chunks.
TEST_CASE("plain 1F1B over several ranks gains nothing from pairs") {
  const ScheduleShape plain{ScheduleKind::one_f_one_b, 4, 1, 16};
  ScheduleShape pairs = plain;
  pairs.pairs = true;
  CHECK(bubble(pairs) > bubble(plain));
}

TEST_CASE("a slow rank holds the others back, whatever its place") {
  struct OneSlow {
    int slow;
    void run(int rank, const Action&, StreamClocks& clocks) const {
      clocks(index(Stream::compute)) *= MaxPlus(Seconds(rank == slow ? 2 : 1));
    }
    void run_pair(int, const Action&, const Action&, StreamClocks&) const {}
    void begin(int, StreamClocks&) const {}
    void before_norm(int, StreamClocks&) const {}
    void update(int, StreamClocks&) const {}
  };
  const ScheduleShape s{ScheduleKind::one_f_one_b, 4, 1, 20};
  for (int slow = 0; slow < 4; ++slow) {
    OneSlow runner{slow};
    PipelineState state(s, 4);
    const double time =
        state.step(runner, build_schedule(s), {.send = {}, .overlapped = true, .step_overhead = {}})
            .value();
    CHECK(time == 20 * 4 + 2 * slow);  // the slow rank's work, and the way to it and back
  }
}

TEST_CASE("every boundary costs a send when nothing overlaps it") {
  const PipelineLinks links{.send = Seconds(1), .overlapped = false, .step_overhead = {}};
  // One microbatch: 4 forwards, 4 backwards of two, 3 sends each way.
  CHECK(step_time({ScheduleKind::one_f_one_b, 4, 1, 1}, {}, links) == 4 * 3 + 2 * 3);
}

TEST_CASE("a sender that overlaps goes on computing while its message travels") {
  PipelineLinks links{.send = Seconds(1), .overlapped = true, .step_overhead = {}};
  const ScheduleShape s{ScheduleKind::gpipe, 2, 1, 8};
  const double overlapped = step_time(s, {}, links);
  links.overlapped = false;
  const double exposed = step_time(s, {}, links);
  CHECK(overlapped == 8 * 3 + 3 + 2);  // one hop each way
  CHECK(exposed > overlapped);
}

TEST_CASE("a message that stalls holds up the launching thread of either end") {
  struct HostLed {
    void run(int, const Action& action, StreamClocks& clocks) const {
      MaxPlus& compute = clocks(index(Stream::compute));
      compute += clocks(index(Stream::host));
      compute *= MaxPlus(Seconds(action.kind == ActionKind::forward ? 1 : 2));
    }
    void run_pair(int, const Action&, const Action&, StreamClocks&) const {}
    void begin(int, StreamClocks&) const {}
    void before_norm(int, StreamClocks&) const {}
    void update(int, StreamClocks&) const {}
  };
  const auto microbatch = [](int pp, double stall) {
    const PipelineLinks links{
        .send = {}, .host_waits = true, .stall = Seconds(stall), .step_overhead = {}};
    const auto time = [&](int microbatches) {
      const ScheduleShape s{ScheduleKind::one_f_one_b, pp, 1, microbatches};
      PipelineState state(s, pp);
      HostLed runner;
      return state.step(runner, build_schedule(s), links).value();
    };
    return time(21) - time(20);
  };
  CHECK(microbatch(2, 0) == 3);
  CHECK(microbatch(2, 10) == 3 + 2 * 10);  // one message comes, one goes
  CHECK(microbatch(4, 10) == 3 + 4 * 10);  // two come and two go in the middle
}

TEST_CASE("steps follow one another: the second takes as long as the first") {
  const ScheduleShape s{ScheduleKind::interleaved, 4, 2, 8};
  const auto actions = build_schedule(s);
  const PipelineLinks links{.send = Seconds(0), .overlapped = true, .step_overhead = {}};
  PipelineState state(s, 8);
  UnitRunner runner;
  const Seconds first = state.step(runner, actions, links);
  const Seconds second = state.step(runner, actions, links);
  CHECK(second.value() == 2 * first.value());
}

TEST_CASE("host time between steps delays the step") {
  UnitRunner runner;
  const ScheduleShape s{ScheduleKind::one_f_one_b, 1, 1, 2};
  PipelineState state(s, 1);
  const PipelineLinks links{.send = {}, .overlapped = true, .step_overhead = Seconds(5)};
  state.step(runner, build_schedule(s), links);
  CHECK(state.clocks[0](index(Stream::host)) == MaxPlus(Seconds(5)));
}

TEST_CASE("run lengths spell the same actions") {
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
        ScheduleKind::zb_h1, ScheduleKind::zbv}) {
    for (const auto& list : build_schedule({kind, 4, 2, 12})) {
      std::vector<Action> spelled;
      for (const ActionRun& run : run_length(list)) {
        for (std::int64_t n = 0; n < run.count; ++n) {
          spelled.insert(spelled.end(), run.pattern.begin(), run.pattern.end());
        }
      }
      REQUIRE(spelled.size() == list.size());
      for (std::size_t i = 0; i < list.size(); ++i) {
        CHECK(spelled[i].kind == list[i].kind);
        CHECK(spelled[i].stage == list[i].stage);
      }
    }
  }
}

TEST_CASE("a pair is one entry of a run, with the stage of its backward for a microbatch") {
  for (const auto& list : build_schedule({ScheduleKind::dualpipe, 4, 1, 24, true})) {
    std::vector<Action> spelled;
    for (const ActionRun& run : run_length(list)) {
      for (std::int64_t n = 0; n < run.count; ++n) {
        for (const Action& a : run.pattern) {
          spelled.push_back(a);
          if (a.paired) spelled.push_back({ActionKind::backward, a.microbatch, 0});
        }
      }
    }
    REQUIRE(spelled.size() == list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      CHECK(spelled[i].kind == list[i].kind);
      CHECK(spelled[i].stage == list[i].stage);
      CHECK(spelled[i].paired == list[i].paired);
    }
  }
}

TEST_CASE("fewer microbatches show dualpipe's peak too, and stay enough to build it") {
  for (const int pp : {2, 4, 8}) {
    for (const int m : {2 * pp, 2 * pp + 2, 12 * pp}) {
      const ScheduleShape whole{ScheduleKind::dualpipe, pp, 1, m, true};
      ScheduleShape few = whole;
      few.microbatches = microbatches_for_memory(whole);
      CHECK(few.microbatches <= std::min(m, 2 * pp + 2));
      const auto a = build_schedule(whole), b = build_schedule(few);
      for (std::size_t r = 0; r < a.size(); ++r) CHECK(max_in_flight(a[r]) == max_in_flight(b[r]));
    }
  }
}

TEST_CASE("fewer microbatches show the same peak in flight") {
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
        ScheduleKind::zb_h1, ScheduleKind::zbv}) {
    for (const int pp : {1, 2, 3, 4, 8}) {
      for (const int m : {1, 4, 7, 16, 48, 96}) {
        const ScheduleShape whole{kind, pp, kind == ScheduleKind::interleaved ? 3 : 2, m};
        ScheduleShape few = whole;
        few.microbatches = microbatches_for_memory(whole);
        CHECK(few.microbatches <= m);
        const auto a = build_schedule(whole), b = build_schedule(few);
        for (std::size_t r = 0; r < a.size(); ++r) {
          CHECK(max_in_flight(a[r]) == max_in_flight(b[r]));
        }
      }
    }
  }
}

TEST_CASE("a steady period lasts as long as the busiest rank's work, though hosts run ahead") {
  // The host needs a third of the busiest rank's time to launch its work, and six streams idle.
  struct Launching {
    int slow;
    void run(int rank, const Action&, StreamClocks& clocks) const {
      clocks(index(Stream::host)) *= MaxPlus(Seconds(1));
      clocks(index(Stream::compute)) *= MaxPlus(Seconds(rank == slow ? 3 : 2));
    }
    void run_pair(int, const Action&, const Action&, StreamClocks&) const {}
    void begin(int, StreamClocks&) const {}
    void before_norm(int, StreamClocks&) const {}
    void update(int, StreamClocks&) const {}
  };
  const ScheduleShape s{ScheduleKind::one_f_one_b, 4, 1, 32};
  for (int slow = 0; slow < 4; ++slow) {
    Launching runner{slow};
    PipelineState state(s, 4);
    Snapshots snapshots;
    state.step(runner, build_schedule(s), {.send = {}, .overlapped = true, .step_overhead = {}},
               &snapshots);
    REQUIRE(std::ssize(snapshots) == steady_part(s, 0).count);
    const auto period = steady_period(snapshots);
    REQUIRE(period);
    CHECK(*period == Seconds(6));
  }
}

TEST_CASE("clocks that still change pace have no steady period") {
  Snapshots snapshots = {{1, 5}, {2, 6}, {3, 7}, {4, 8}, {5, 9}, {6, 10}};
  REQUIRE(steady_period(snapshots));
  CHECK(*steady_period(snapshots) == Seconds(1));
  snapshots[2][1] = 6.5;  // three periods before the last but one
  CHECK_FALSE(steady_period(snapshots));
  snapshots.resize(4);
  CHECK_FALSE(steady_period(snapshots));
}

TEST_CASE("a shortened schedule leaves out whole periods") {
  const ScheduleShape s{ScheduleKind::interleaved, 4, 2, 64};
  const Shortened shortened = shorten(s, 6);
  CHECK(steady_part(shortened.shape, 0).count == 6);
  CHECK(shortened.shape.microbatches + shortened.left_out * 4 == 64);
  CHECK(shorten({ScheduleKind::gpipe, 4, 1, 64}, 6).left_out == 0);  // gpipe has no steady part
}

TEST_CASE("reductions of whole stages hide in the bubble behind the first rank") {
  // Rank r ends r backwards before rank 0, which reduces beside its last backward.
  ScheduleShape s{ScheduleKind::one_f_one_b, 4, 1, 8};
  const double plain = step_time(s, {}, {});
  s.whole_reductions = true;
  CHECK(step_time(s, {.reduction = 2}, {}) == plain);  // a backward of rank 1 is 2 long
  CHECK(step_time(s, {.reduction = 3}, {}) == plain + 1);
}

TEST_CASE("interleaved, all but the last chunk's reduction hide beside other chunks") {
  ScheduleShape s{ScheduleKind::interleaved, 2, 2, 8};
  const double plain = step_time(s, {}, {});
  s.whole_reductions = true;
  // Chunk 1 of rank 0 is reduced beside two backwards of 2; chunk 0 after everything.
  CHECK(step_time(s, {.reduction = 1}, {}) == plain + 1);
  CHECK(step_time(s, {.reduction = 4}, {}) == plain + 4);
  CHECK(step_time(s, {.reduction = 7}, {}) > plain + 7);
}
