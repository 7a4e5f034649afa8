#pragma once
// Which rank sits where: Megatron's order tp-cp-ep-dp-pp, leftmost fastest
// (docs/reference/frameworks.md 1.7).

#include <array>
#include <cstdint>
#include <vector>

#include "models/plan/parallel_plan.h"
#include "models/pods.h"
#include "models/program/work.h"

namespace qplan {

// A group of an axis as the network sees it. Every group of one axis has the same shape.
struct GroupShape {
  int size = 1;               // ranks in the group
  int ranks_per_node = 1;     // of one group inside one node (largest)
  int nodes = 1;              // nodes that one group touches
  int concurrent_groups = 1;  // groups of this axis that share a node's NICs at the same time
  PodLoad pods{};             // ... and what they put on the links between pods, of any level
  bool operator==(const GroupShape&) const = default;
};

// Every group is an arithmetic sequence of ranks: base, base + stride, ... (size of them). Groups
// tile the world. O(1); nothing is enumerated. Where sizes do not divide the domain, the group that
// touches the most nodes counts, and concurrent_groups keeps each rank's share of the NICs right.
GroupShape shape_of_groups(std::int64_t stride, std::int64_t size, std::int64_t domain,
                           std::int64_t world);

// A group and the same group on the ranks that hold the other copy of its stage (stage_copies), as
// one. Pieces live on pipeline ranks r and pp-1-r; of those, 0 and pp-1 are the furthest apart and
// count.
GroupShape shape_with_copies(const GroupShape& one, std::int64_t domain, std::int64_t world);

// Consecutive ranks of a job of `world` that share an NVLink domain of `domain` GPUs. Nodes are
// filled one after the other. Of racks (NVL72: 18 trays of 4) a scheduler gives equal parts, 64 of
// each for 256 ranks, so that groups of 32 or 64 do not lie across two: HybridEP does not start
// where they do, so its users ask Slurm for segments (NeMo Automodel, pull request 3914). Where no
// equal part is as large as half a rack, racks are filled too.
int ranks_of_domain(std::int64_t world, int domain);

class RankGrid {
 public:
  RankGrid() = default;
  // `domain` is the number of GPUs that reach each other over NVLink; pods hold whole domains.
  RankGrid(const ParallelPlan& plan, int domain, const PodLevels& pods = {});

  [[nodiscard]] std::int64_t world() const { return world_; }
  [[nodiscard]] const GroupShape& shape(Axis axis) const;

  // Coordinates of a rank, and back.
  struct Dense {
    int tp = 0, cp = 0, dp = 0, pp = 0;
  };
  struct Expert {
    int etp = 0, ep = 0, edp = 0, pp = 0;
  };
  [[nodiscard]] Dense dense(std::int64_t rank) const;
  [[nodiscard]] Expert expert(std::int64_t rank) const;
  [[nodiscard]] std::int64_t rank(const Dense& at) const;

  // What messages of a pipeline rank to the next (of the last, to the first) put on the links
  // between pods: PodLoad::edge of that boundary alone.
  [[nodiscard]] double boundary_load(int pipeline_rank) const;

  // The ranks of the group of `axis` that `rank` belongs to, in group order. Middle stages belong
  // to no embedding group: empty. Where stages live twice, the groups that reduce gradients and
  // shard states hold the ranks of both copies.
  [[nodiscard]] std::vector<std::int64_t> group(Axis axis, std::int64_t rank) const;

 private:
  struct Sequence {
    std::int64_t stride = 1, size = 1;
  };
  [[nodiscard]] Sequence sequence(Axis axis) const;
  [[nodiscard]] bool spans_copies(Axis axis) const;
  [[nodiscard]] PodLoad load_of(Axis axis, const PodLevel& level) const;
  [[nodiscard]] std::vector<std::int64_t> one_copy(Axis axis, std::int64_t rank) const;

  int tp_ = 1, cp_ = 1, dp_ = 1, pp_ = 1, etp_ = 1, ep_ = 1, edp_ = 1;
  int shard_ = 1;           // ranks of dp_cp that share one copy of the states (HSDP)
  int copies_ = 1;          // of a stage
  bool shards_all_ = true;  // the states are sharded over all ranks of a stage, its copies included
  std::int64_t world_ = 1;
  int domain_ = 1;    // in ranks, ...
  PodLevels pods_{};  // ... as these are
  std::array<GroupShape, kAxisCount> shapes_{};
};

}  // namespace qplan
