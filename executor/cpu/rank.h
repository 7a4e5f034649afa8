#pragma once
// A rank of the reference backend: its arena is memory of this process.

#include <vector>

#include "executor/rank.h"

namespace qplan {

class CpuRank : public Rank {
 public:
  CpuRank(const RankJob& job, const RankProgram& commands, std::int64_t rank);

 private:
  std::vector<std::byte> storage_;
};

}  // namespace qplan
