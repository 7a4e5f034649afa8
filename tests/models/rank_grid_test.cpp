#include "models/rank_grid.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

using namespace qplan;

namespace {

constexpr Axis kAxes[] = {Axis::tp,        Axis::cp,    Axis::dp,       Axis::dp_cp,
                          Axis::pp,        Axis::etp,   Axis::ep,       Axis::edp,
                          Axis::embedding, Axis::world, Axis::dp_shard, Axis::dp_replicate};

ParallelPlan plan_of(int tp, int cp, int dp, int pp, int ep = 1, int etp = 1) {
  ParallelPlan plan;
  plan.tp = tp;
  plan.cp = cp;
  plan.dp = dp;
  plan.pp = pp;
  plan.ep = ep;
  plan.etp = etp;
  return plan;
}

// Every group of an axis, by asking every rank for its group.
std::set<std::vector<std::int64_t>> all_groups(const RankGrid& grid, Axis axis) {
  std::set<std::vector<std::int64_t>> groups;
  for (std::int64_t rank = 0; rank < grid.world(); ++rank) {
    auto group = grid.group(axis, rank);
    if (!group.empty()) groups.insert(std::move(group));
  }
  return groups;
}

// What GroupShape means, by counting.
GroupShape counted(const RankGrid& grid, Axis axis, int domain) {
  GroupShape shape;
  std::map<std::int64_t, int> crossing_groups;
  for (const auto& group : all_groups(grid, axis)) {
    std::map<std::int64_t, int> ranks_of;
    for (const std::int64_t rank : group) ++ranks_of[rank / domain];
    shape.size = static_cast<int>(group.size());
    shape.nodes = std::max(shape.nodes, static_cast<int>(ranks_of.size()));
    for (const auto& [node, ranks] : ranks_of) {
      shape.ranks_per_node = std::max(shape.ranks_per_node, ranks);
      if (ranks_of.size() > 1) ++crossing_groups[node];
    }
  }
  for (const auto& [node, groups] : crossing_groups) {
    shape.concurrent_groups = std::max(shape.concurrent_groups, groups);
  }
  return shape;
}

int power_of_two(std::mt19937& random, int largest) {
  return 1 << std::uniform_int_distribution<int>(0, largest)(random);
}

}  // namespace

TEST_CASE("a DGX of tp 8 puts tp inside the node and a NIC behind every dp group") {
  const RankGrid grid(plan_of(8, 1, 4, 2), 8);
  CHECK(grid.shape(Axis::tp) == GroupShape{8, 8, 1, 1});
  CHECK(grid.shape(Axis::dp) == GroupShape{4, 1, 4, 8});
  CHECK(grid.shape(Axis::pp) == GroupShape{2, 1, 2, 8});
  CHECK(grid.shape(Axis::embedding) == GroupShape{2, 1, 2, 8});
  CHECK(grid.shape(Axis::world) == GroupShape{64, 8, 8, 1});
  CHECK(grid.shape(Axis::cp) == GroupShape{1, 1, 1, 1});
}

TEST_CASE("expert groups fold over tp, cp and dp of one stage") {
  const RankGrid grid(plan_of(2, 1, 8, 1, /*ep=*/16), 8);
  CHECK(grid.shape(Axis::ep) == GroupShape{16, 8, 2, 1});
  CHECK(grid.shape(Axis::edp) == GroupShape{1, 1, 1, 1});
  CHECK(grid.group(Axis::ep, 5).size() == 16);
  CHECK(grid.expert(5).ep == 5);
}

TEST_CASE("ranks follow Megatron's order tp-cp-dp-pp, and etp-ep-edp-pp for experts") {
  const RankGrid grid(plan_of(2, 3, 4, 5, /*ep=*/6, /*etp=*/2), 8);
  std::int64_t rank = 0;
  for (int pp = 0; pp < 5; ++pp) {
    for (int dp = 0; dp < 4; ++dp) {
      for (int cp = 0; cp < 3; ++cp) {
        for (int tp = 0; tp < 2; ++tp, ++rank) {
          const auto at = grid.dense(rank);
          CHECK((at.tp == tp && at.cp == cp && at.dp == dp && at.pp == pp));
          CHECK(grid.rank(at) == rank);
          const auto expert = grid.expert(rank);
          CHECK(expert.etp + 2 * (expert.ep + 6 * (expert.edp + 2 * expert.pp)) == rank);
          CHECK(expert.pp == pp);
        }
      }
    }
  }
}

TEST_CASE("groups differ only in their own coordinate") {
  const RankGrid grid(plan_of(2, 2, 4, 4, /*ep=*/4, /*etp=*/2), 8);
  for (std::int64_t rank = 0; rank < grid.world(); ++rank) {
    const auto me = grid.dense(rank);
    for (const std::int64_t other : grid.group(Axis::dp, rank)) {
      const auto at = grid.dense(other);
      CHECK((at.tp == me.tp && at.cp == me.cp && at.pp == me.pp));
    }
    for (const std::int64_t other : grid.group(Axis::edp, rank)) {
      CHECK(grid.expert(other).ep == grid.expert(rank).ep);
      CHECK(grid.expert(other).etp == grid.expert(rank).etp);
    }
    const auto replicas = grid.group(Axis::dp_cp, rank);
    CHECK(std::count(replicas.begin(), replicas.end(), rank) == 1);
  }
}

TEST_CASE("the embedding group is the first and the last stage, and nobody else's") {
  const RankGrid grid(plan_of(2, 1, 2, 4), 8);
  CHECK(grid.group(Axis::embedding, 1) == std::vector<std::int64_t>{1, 13});
  CHECK(grid.group(Axis::embedding, 13) == std::vector<std::int64_t>{1, 13});
  CHECK(grid.group(Axis::embedding, 5).empty());
  CHECK(RankGrid(plan_of(2, 1, 2, 1), 8).shape(Axis::embedding).size == 1);
}

TEST_CASE("where stages live twice, gradients are reduced over the ranks of both copies") {
  // Four stages of two ranks in nodes of four; pieces 0 and 3 are on ranks 0, 1 and 6, 7.
  ParallelPlan plan = plan_of(1, 1, 2, 4);
  plan.schedule = ScheduleKind::dualpipe;
  const RankGrid grid(plan, 4);
  for (const std::int64_t rank : {0, 1, 6, 7}) {
    CHECK(grid.group(Axis::dp_cp, rank) == std::vector<std::int64_t>{0, 1, 6, 7});
    CHECK(grid.group(Axis::dp_shard, rank) == std::vector<std::int64_t>{0, 1, 6, 7});
  }
  CHECK(grid.group(Axis::dp_cp, 3) == std::vector<std::int64_t>{2, 3, 4, 5});
  CHECK(grid.shape(Axis::dp_cp) == GroupShape{4, 2, 2, 2});
  CHECK(grid.group(Axis::dp, 6) == std::vector<std::int64_t>{6, 7});
  CHECK(grid.shape(Axis::edp) == GroupShape{4, 2, 2, 2});
  plan.ep = 2;  // no data parallelism is left for experts but the copies'
  CHECK(RankGrid(plan, 4).group(Axis::edp, 1) == std::vector<std::int64_t>{1, 7});
  CHECK(RankGrid(plan, 8).shape(Axis::dp_cp) == GroupShape{4, 4, 1, 1});
}

TEST_CASE("groups of both copies have the shape of the furthest two") {
  std::mt19937 random(13);
  for (int i = 0; i < 300; ++i) {
    ParallelPlan plan = plan_of(power_of_two(random, 3), power_of_two(random, 2),
                                power_of_two(random, 3), 2 * power_of_two(random, 2));
    plan.schedule = ScheduleKind::dualpipe;
    plan.ep = std::min(power_of_two(random, 4), plan.tp * plan.cp * plan.dp);
    if (i % 2 == 0) plan.fsdp_shard = std::min(power_of_two(random, 3), plan.dp * plan.cp);
    const int domain = power_of_two(random, 4);
    const RankGrid grid(plan, domain);
    for (const Axis axis : kAxes) {
      CAPTURE(to_word(axis));
      CAPTURE(domain);
      CAPTURE(to_string(plan));
      CHECK(grid.shape(axis) == counted(grid, axis, domain));
    }
  }
}

TEST_CASE("HSDP shards over neighbours and replicates across") {
  ParallelPlan plan = plan_of(1, 1, 32, 1);
  plan.fsdp_shard = 8;
  const RankGrid grid(plan, 8);
  CHECK(grid.shape(Axis::dp_cp) == GroupShape{32, 8, 4, 1});
  CHECK(grid.shape(Axis::dp_shard) == GroupShape{8, 8, 1, 1});
  CHECK(grid.shape(Axis::dp_replicate) == GroupShape{4, 1, 4, 8});
  plan.fsdp_shard = 0;
  CHECK(RankGrid(plan, 8).shape(Axis::dp_shard) == GroupShape{32, 8, 4, 1});
}

TEST_CASE("shapes of random plans equal the count over all ranks") {
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    ParallelPlan plan = plan_of(power_of_two(random, 4), power_of_two(random, 2),
                                power_of_two(random, 4), power_of_two(random, 3));
    const std::int64_t stage = std::int64_t{plan.tp} * plan.cp * plan.dp;
    plan.etp = std::min(power_of_two(random, 2), static_cast<int>(stage));
    plan.ep = std::min(power_of_two(random, 5), static_cast<int>(stage / plan.etp));
    plan.fsdp_shard = std::min(power_of_two(random, 3), plan.dp * plan.cp);
    const int domain = power_of_two(random, 4);
    const RankGrid grid(plan, domain);
    for (const Axis axis : kAxes) {
      CAPTURE(to_word(axis));
      CAPTURE(domain);
      CAPTURE(plan.tp);
      CAPTURE(plan.cp);
      CAPTURE(plan.dp);
      CAPTURE(plan.pp);
      CHECK(grid.shape(axis) == counted(grid, axis, domain));
    }
  }
}

TEST_CASE("where sizes do not divide the domain the shape covers the worst group") {
  std::mt19937 random(11);
  const auto small = [&] { return std::uniform_int_distribution<int>(1, 6)(random); };
  for (int i = 0; i < 300; ++i) {
    const ParallelPlan plan = plan_of(small(), small(), small(), small());
    const int domain = std::uniform_int_distribution<int>(2, 12)(random);
    const RankGrid grid(plan, domain);
    for (const Axis axis : kAxes) {
      const GroupShape shape = grid.shape(axis);
      const GroupShape exact = counted(grid, axis, ranks_of_domain(plan.world(), domain));
      CAPTURE(to_word(axis));
      CAPTURE(domain);
      CAPTURE(plan.tp);
      CAPTURE(plan.cp);
      CAPTURE(plan.dp);
      CAPTURE(plan.pp);
      CHECK(shape.size == exact.size);
      CHECK(shape.ranks_per_node == exact.ranks_per_node);
      CHECK(shape.nodes == exact.nodes);
      CHECK((shape.concurrent_groups > 1) <= (shape.nodes > 1));
    }
  }
}

TEST_CASE("72 GPUs in one domain keep ep 64 on NVLink") {
  const RankGrid grid(plan_of(1, 1, 64, 1, /*ep=*/64), 72);
  CHECK(grid.shape(Axis::ep).nodes == 1);
  CHECK(RankGrid(plan_of(1, 1, 144, 1), 72).shape(Axis::dp) == GroupShape{144, 72, 2, 1});
}

TEST_CASE("racks get equal parts of a job where those are not small") {
  CHECK(ranks_of_domain(256, 72) == 64);
  CHECK(ranks_of_domain(1024, 72) == 64);
  CHECK(ranks_of_domain(576, 72) == 72);
  CHECK(ranks_of_domain(96, 72) == 48);
  CHECK(ranks_of_domain(64, 72) == 72);      // one rack
  CHECK(ranks_of_domain(4 * 37, 72) == 72);  // trays of 4 divide it, but hardly fill a rack
  CHECK(ranks_of_domain(12, 8) == 8);        // nodes are filled
  // Without equal parts the second group of 64 would lie across two racks.
  CHECK(RankGrid(plan_of(1, 1, 256, 1, /*ep=*/64), 72).shape(Axis::ep).nodes == 1);
}
