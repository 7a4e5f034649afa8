#pragma once
// Inside the cost model: how a plan is taken apart, and what is remembered. Private to costmodel.

#include <algorithm>
#include <array>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "costmodel/evaluate.h"
#include "costmodel/pipeline.h"
#include "models/error.h"

namespace qplan {

struct ShapeHash {
  std::size_t operator()(const BlockShape& s) const { return hash_of(s); }
};

// Which groups a price may depend on, as one number.
inline std::uint64_t groups_hash(const RankGrid& grid, std::initializer_list<Axis> axes) {
  std::uint64_t hash = 1469598103934665603ULL;
  for (const Axis axis : axes) {
    const GroupShape& g = grid.shape(axis);
    for (const int n : {g.size, g.ranks_per_node, g.nodes, g.concurrent_groups}) {
      hash = (hash ^ static_cast<std::uint64_t>(n)) * std::uint64_t{1099511628211};
      hash ^= hash >> 29;
    }
  }
  return hash;
}

struct DelayKey {
  BlockShape shape;
  std::uint64_t groups = 0;
  std::optional<CudaGraphScope> graphs;
  BackwardForm backward = BackwardForm::whole;
  bool operator==(const DelayKey&) const = default;
};
struct DelayHash {
  std::size_t operator()(const DelayKey& k) const {
    return (hash_of(k.shape) ^ k.groups) * 9 +
           (k.graphs ? 3 + 3 * static_cast<std::size_t>(*k.graphs) : 0) +
           static_cast<std::size_t>(k.backward);
  }
};

// Delays of the parts of a stage, at the places of `Part`.
using PartDelays = std::array<StreamDelay, kPartCount>;
constexpr std::size_t at(Part part) {
  return static_cast<std::size_t>(part);
}

// Delays of those parts of a block that were asked for, two to five of twelve: a search over
// thousands of GPUs keeps hundreds of thousands of blocks.
class BlockDelays {
 public:
  void add(Part part, const StreamDelay& delay) { known_.emplace_back(part, delay); }
  [[nodiscard]] const StreamDelay& of(Part part) const {
    const auto is_part = [part](const auto& known) { return known.first == part; };
    const auto it = std::find_if(known_.begin(), known_.end(), is_part);
    QPLAN_CHECK(it != known_.end(), "a block's part is priced before it is run");
    return it->second;
  }

 private:
  std::vector<std::pair<Part, StreamDelay>> known_;
};

// A map shared by threads: values are made outside the lock and never change once stored.
template <class Key, class Value, class Hash>
class SharedMemo {
 public:
  template <class Make>
  const Value& get(const Key& key, Make make) {
    Shard& shard = shards_[Hash{}(key) % kShards];
    {
      const std::lock_guard lock(shard.mutex);
      const auto it = shard.map.find(key);
      if (it != shard.map.end()) return *it->second;
    }
    auto value = std::make_unique<Value>(make());
    const std::lock_guard lock(shard.mutex);
    return *shard.map.try_emplace(key, std::move(value)).first->second;
  }

 private:
  static constexpr std::size_t kShards = 64;
  struct Shard {
    std::mutex mutex;
    std::unordered_map<Key, std::unique_ptr<Value>, Hash> map;
  };
  std::array<Shard, kShards> shards_;
};

// Two blocks that run as a pair.
struct PairKey {
  DelayKey forward, backward;
  bool operator==(const PairKey&) const = default;
};
struct PairHash {
  std::size_t operator()(const PairKey& k) const {
    return DelayHash{}(k.forward) * 31 + DelayHash{}(k.backward);
  }
};

struct ScheduleHash {
  std::size_t operator()(const ScheduleShape& s) const {
    return static_cast<std::size_t>(s.kind) + 8 * static_cast<std::size_t>(s.pp) +
           65536 * static_cast<std::size_t>(s.vpp) +
           16777216 * static_cast<std::size_t>(s.microbatches) + (s.pairs ? 4 : 0) +
           (s.whole_reductions ? 2 : 0);
  }
};
using RunLengths = std::vector<std::vector<ActionRun>>;

struct CostModel::Memo {
  SharedMemo<DelayKey, BlockMemory, DelayHash> memory;
  SharedMemo<BlockShape, PersistentBytes, ShapeHash> states;
  SharedMemo<DelayKey, BlockDelays, DelayHash> compute_delays, state_delays;
  SharedMemo<PairKey, StreamDelay, PairHash> pair_delays;
  SharedMemo<PairKey, MemoryUse, PairHash> pair_memory;
  SharedMemo<DelayKey, double, DelayHash> busy;  // compute of forward and backward, alone
  SharedMemo<ScheduleShape, RunLengths, ScheduleHash> schedules;
};

// A plan taken apart once, for the several questions asked about it.
struct CostModel::PlanView {
  const ParallelPlan* plan = nullptr;
  BlockShape base;
  StageList stages;
  ScheduleShape schedule;
  BackwardForm backward = BackwardForm::whole;
};

}  // namespace qplan
