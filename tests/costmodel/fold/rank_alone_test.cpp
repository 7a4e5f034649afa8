#include "costmodel/fold/rank_alone.h"

#include <doctest/doctest.h>

#include <random>

using namespace qplan;

namespace {

// Parts of random lengths on compute, some with a reduction or a gather beside it.
struct RandomRunner {
  std::vector<double> forward, backward, gather, reduction;  // of each stage
  double norm = 0, optimizer = 0;

  RandomRunner(int stages, std::mt19937& random) {
    std::uniform_real_distribution<double> length(0.5, 2), beside(0, 3);
    for (int s = 0; s < stages; ++s) {
      forward.push_back(length(random));
      backward.push_back(2 * length(random));
      gather.push_back(beside(random));
      reduction.push_back(beside(random));
    }
    norm = length(random);
    optimizer = length(random);
  }

  static void take(double time, StreamClocks& clocks) {
    clocks(index(Stream::compute)) *= MaxPlus(Seconds(time));
  }
  static void beside(Stream stream, double time, StreamClocks& clocks) {
    MaxPlus& clock = clocks(index(stream));
    clock += clocks(index(Stream::compute));
    clock *= MaxPlus(Seconds(time));
  }
  void run(int, const Action& a, StreamClocks& clocks) const {
    const auto stage = static_cast<std::size_t>(a.stage);
    if (a.kind == ActionKind::forward) {
      if (a.first) {
        beside(Stream::gather_comm, gather[stage], clocks);
        clocks(index(Stream::compute)) += clocks(index(Stream::gather_comm));
      }
      return take(forward[stage], clocks);
    }
    if (a.kind == ActionKind::reduce) return beside(Stream::reduce_comm, reduction[stage], clocks);
    // Half for the input, half for the weights.
    take(a.kind == ActionKind::backward ? backward[stage] : backward[stage] / 2, clocks);
    if (a.last) beside(Stream::reduce_comm, reduction[stage], clocks);
  }
  void run_pair(int, const Action&, const Action&, StreamClocks&) const {}
  void begin(int, StreamClocks&) const {}
  void before_norm(int, StreamClocks& clocks) const {
    join_all(clocks);
    take(norm, clocks);
  }
  void update(int, StreamClocks& clocks) const { take(optimizer, clocks); }
};

struct Found {
  double alone = 0, step = 0;
};

Found of(const ScheduleShape& shape, RandomRunner& runner) {
  const PipelineLinks links{.send = Seconds(0.1), .overlapped = true, .step_overhead = {}};
  PipelineState state(shape, virtual_stages(shape));
  const auto actions = build_schedule(shape);
  const Seconds first = state.step(runner, actions, links);
  const Seconds second = state.step(runner, actions, links);
  const Shortened few = shorten(shape, 2 * RankAlone<RandomRunner>::kPeriods);
  const auto few_actions = build_schedule(few.shape);
  RankAlone ranks(runner, few, few_actions, links);
  Found found{0, (second - first).value()};
  for (int rank = 0; rank < shape.pp; ++rank) {
    found.alone = std::max(found.alone, ranks.least(rank).value());
  }
  return found;
}

}  // namespace

TEST_CASE("no step is shorter than what one of its ranks does alone, and few are much longer") {
  std::mt19937 random(7);
  const auto one_of = [&](std::initializer_list<int> numbers) {
    return numbers.begin()[random() % numbers.size()];
  };
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
        ScheduleKind::zb_h1, ScheduleKind::zbv}) {
    double share = 0;
    constexpr int kRounds = 60;
    for (int i = 0; i < kRounds; ++i) {
      ScheduleShape shape{kind, one_of({2, 3, 4, 8}), 1, 0};
      if (kind == ScheduleKind::interleaved) shape.vpp = one_of({2, 3, 5});
      if (kind == ScheduleKind::zbv) shape.vpp = 2;
      shape.microbatches = shape.pp * one_of({2, 3, 9, 40});
      shape.whole_reductions = random() % 2 == 0;
      RandomRunner runner(virtual_stages(shape), random);
      const Found found = of(shape, runner);
      CAPTURE(shape.pp);
      CAPTURE(shape.vpp);
      CAPTURE(shape.microbatches);
      REQUIRE(found.alone <= found.step * (1 + 1e-12));
      share += found.alone / found.step / kRounds;
    }
    CAPTURE(static_cast<int>(kind));
    CAPTURE(share);
    CHECK(share > 0.85);
  }
}

TEST_CASE("one rank alone is the whole step") {
  std::mt19937 random(8);
  for (const int microbatches : {1, 2, 9, 100}) {
    const ScheduleShape shape{ScheduleKind::one_f_one_b, 1, 1, microbatches};
    RandomRunner runner(1, random);
    const Found found = of(shape, runner);
    CHECK(found.alone == doctest::Approx(found.step).epsilon(1e-12));
  }
}
