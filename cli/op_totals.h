#pragma once
// What kinds of ops one step ran, as predicted and as executed.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "models/program/trace.h"
#include "models/rank_grid.h"

namespace qplan {

// Ops of one kind and the time they took, one after the other; what collectives waited for other
// ranks to begin them, no part of it.
struct KindTotals {
  std::int64_t ops = 0;
  Seconds time, waited;
};

// By kind, the first word of an op: "gemm" of "gemm 32x64x64 bf16".
using OpTotals = std::map<std::string, KindTotals, std::less<>>;

// Like with like: of each pipeline rank that was traced the first of its ranks. Where ranks are
// threads that is every pipeline rank; where each is a process with a GPU, the trace is rank 0's
// and so is what is compared. Messages between stages are left out: the schedule prices them, they
// are no ops.
struct OpComparison {
  std::set<int> pipeline_ranks;
  OpTotals predicted, executed;
  [[nodiscard]] bool same_ops() const;                   // as many of each kind
  [[nodiscard]] std::vector<std::string> kinds() const;  // of either, sorted
};

// `predicted`: one rank for each of the pipeline (replay.h); `executed`: ranks of the grid.
OpComparison compare_ops(const Trace& predicted, const Trace& executed, const RankGrid& grid);

}  // namespace qplan
