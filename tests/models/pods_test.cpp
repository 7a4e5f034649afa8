#include "models/pods.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "models/rank_grid.h"

using namespace qplan;

namespace {

// What PodLoad means, by counting ranks.
PodLoad counted(std::int64_t stride, std::int64_t size, const PodLevel& level, std::int64_t world) {
  std::map<std::int64_t, std::map<std::int64_t, int>> ranks_of;  // pod -> group -> ranks
  for (std::int64_t rank = 0; rank < world; ++rank) {
    const std::int64_t group = rank / (stride * size) * stride + rank % stride;
    ++ranks_of[rank / level.gpus][group];
  }
  PodLoad most;
  for (const auto& [pod, groups] : ranks_of) {
    double edges = 0, exchanged = 0;
    for (const auto& [group, ranks] : groups) {
      if (ranks == size) continue;
      edges += 1;
      exchanged += ranks * static_cast<double>(size - ranks) / static_cast<double>(size);
    }
    most.edge = std::max(most.edge, edges);
    most.exchange = std::max(most.exchange, exchanged);
  }
  const double share = level.oversubscription / static_cast<double>(level.gpus);
  return {most.edge * share, most.exchange * share};
}

ParallelPlan plan_of(int tp, int dp, int pp) {
  ParallelPlan plan;
  plan.tp = tp;
  plan.dp = dp;
  plan.pp = pp;
  return plan;
}

constexpr PodLevels pods(std::int64_t gpus, double ratio, bool rails = false) {
  return {PodLevel{gpus, ratio, rails}};
}

}  // namespace

TEST_CASE("what leaves a pod is what a count over its ranks finds") {
  std::mt19937 random(5);
  const auto pick = [&](int low, int high) {
    return std::int64_t{std::uniform_int_distribution<int>(low, high)(random)};
  };
  for (int i = 0; i < 2000; ++i) {
    const std::int64_t stride = pick(1, 12), size = pick(2, 12);
    const std::int64_t world = stride * size * pick(1, 6);
    const PodLevel level{pick(1, 60), 7, false};
    CAPTURE(stride);
    CAPTURE(size);
    CAPTURE(world);
    CAPTURE(level.gpus);
    const PodLoad load = pod_load(stride, size, level, 1, world);
    const PodLoad exact = counted(stride, size, level, world);
    CHECK(load.edge == doctest::Approx(exact.edge));
    CHECK(load.exchange == doctest::Approx(exact.exchange));
  }
}

// Llama 3 405B's layout in Megatron's order, on pods of 3072 GPUs with 1:7 between them.
TEST_CASE("data-parallel groups of a stage stay in a pod, and every third boundary leaves it") {
  const RankGrid grid(plan_of(8, 128, 16), 8, pods(3072, 7));
  CHECK(grid.shape(Axis::tp).pods == PodLoad{});
  // A stage's 1024 GPUs fill a third of a pod: no group has ranks in two.
  CHECK(grid.shape(Axis::dp).pods == PodLoad{});
  for (int stage = 0; stage < 15; ++stage) {
    CAPTURE(stage);
    const double expected = stage % 3 == 2 ? 7.0 * 1024 / 3072 : 0;
    CHECK(grid.boundary_load(stage) == doctest::Approx(expected));
  }
  CHECK(grid.boundary_load(15) > 0);  // from the last stage to the first
}

TEST_CASE("a ring whose neighbours are all in other pods has a seventh of the cards") {
  const RankGrid grid(plan_of(1, 1, 64), 8, pods(8, 7));
  CHECK(grid.shape(Axis::pp).pods.edge == doctest::Approx(7.0 / 8));  // one of 8 leaves
  // Stages as large as a pod: everybody's messages leave.
  CHECK(RankGrid(plan_of(8, 2, 8), 8, pods(16, 7)).boundary_load(0) == doctest::Approx(7));
}

TEST_CASE("rails keep groups at one place of their nodes apart from the spine") {
  // Every eighth rank: the same place of each node.
  CHECK(RankGrid(plan_of(8, 16, 1), 8, pods(128, 4, true)).shape(Axis::dp).pods == PodLoad{});
  // All ranks of each node.
  CHECK(RankGrid(plan_of(1, 128, 1), 8, pods(128, 4, true)).shape(Axis::dp).pods == PodLoad{});
  // Every twelfth rank: places 0, 4, 0, 4 ...
  CHECK(RankGrid(plan_of(12, 16, 1), 8, pods(192, 4, true)).shape(Axis::dp).pods.edge ==
        doctest::Approx(4));
  CHECK(RankGrid(plan_of(12, 16, 1), 8, pods(192, 4)).shape(Axis::dp).pods == PodLoad{});
}

TEST_CASE("racks that a job fills in part make pods of fewer ranks") {
  // 256 ranks are given 64 of each rack's 72: two racks to a pod.
  const RankGrid grid(plan_of(64, 1, 4), 72, pods(144, 7));
  CHECK(grid.boundary_load(0) == 0);
  CHECK(grid.boundary_load(1) == doctest::Approx(7.0 * 64 / 128));
}

TEST_CASE("stages that live twice reduce between the first pod and the last") {
  ParallelPlan plan = plan_of(8, 4, 4);
  plan.schedule = ScheduleKind::dualpipe;
  const RankGrid grid(plan, 8, pods(64, 7));
  // Each of a pod's groups of four has its other half elsewhere.
  CHECK(grid.shape(Axis::dp_cp).pods.edge == doctest::Approx(7.0 / 4));
}
