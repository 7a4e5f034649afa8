#pragma once
// What of a block's states one rank has. Private to state_builder.h's chapters.

#include <cmath>
#include <cstdint>

#include "models/program/layer_context.h"
#include "models/units.h"

namespace qplan {

inline std::int64_t ceil_of(double bytes) {
  return static_cast<std::int64_t>(std::ceil(bytes));
}

inline Axis dense_axis(const BlockShape& s) {
  return s.dense_replicas > 1 && s.zero > 0 ? Axis::dp_shard : Axis::dp_cp;
}

inline RankParameters sharded(const RankParameters& n, const BlockShape& s) {
  return {.dense = ceil_div(n.dense, s.dense_shard), .expert = ceil_div(n.expert, s.expert_shard)};
}

inline bool reduces_every_microbatch(const BlockShape& s) {
  return s.zero >= 2 && !s.sums_whole;
}

}  // namespace qplan
