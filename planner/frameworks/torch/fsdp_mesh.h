#pragma once
// What accelerate's and torchtitan's tables share: FSDP2's mesh and its limits. Private to them.

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "planner/frameworks/option.h"

namespace qplan::fsdp {

// FSDP's mesh is dp_shard x cp; a plan's fsdp_shard counts both.
inline int dp_shard(const ParallelPlan& p) {
  return p.fsdp_shard > 0 ? p.fsdp_shard / p.cp : p.dp;
}
inline int dp_replicate(const ParallelPlan& p) {
  return p.dp / std::max(1, dp_shard(p));
}

inline bool offloads(const Subject& s) {
  return s.plan.offload.params;
}

inline EnumSet<OverlapKind> fsdp_overlap() {
  return EnumSet<OverlapKind>{}.add(OverlapKind::grad).add(OverlapKind::param);
}

// Both read replication into the number of copies; shards follow from the world.
inline void set_copies(Draft& draft, const Json& value) {
  draft.shard_groups = degree_of(value);
}

inline bool fp32_states(const Subject& s) {
  return s.plan.grad_dtype == DType::fp32 && s.plan.main_params_dtype == DType::fp32 &&
         s.plan.moment_dtype == DType::fp32;
}

inline std::string fp32_only(const Subject&) {
  return "FSDP2 keeps weights, gradients and moments as fp32 shards";
}

inline bool shards_unevenly(const Subject& s) {
  return s.plan.fsdp_shard > 0 && s.plan.fsdp_shard % s.plan.cp != 0;
}

inline std::string whole_shards(const Subject& s) {
  return fmt::format("a shard group of {} ranks does not hold whole cp groups of {}",
                     s.plan.fsdp_shard, s.plan.cp);
}

// Where copies are said, shards are what they leave.
inline void set_shards(Draft& draft, std::int64_t gpus) {
  ParallelPlan& p = draft.plan;
  const int copies = draft.shard_groups.value_or(1);
  const std::int64_t others = std::int64_t{p.tp} * p.cp * p.pp;
  int shard = p.dp;
  if (shard == 0) {
    shard = static_cast<int>(std::max<std::int64_t>(1, gpus / (others * copies)));
  }
  p.dp = shard * copies;
  if (copies > 1) p.fsdp_shard = shard * p.cp;
}

}  // namespace qplan::fsdp
