#include "executor/cpu/rank.h"

#include <memory>

namespace qplan {
namespace {

constexpr std::size_t kAlignment = 256;  // of slots, as CUDA's allocators give

}  // namespace

CpuRank::CpuRank(const RankJob& shared, const RankProgram& own, std::int64_t number)
    : Rank(shared, own, number, nullptr),
      storage_(static_cast<std::size_t>(own.extent) + kAlignment) {
  void* begin = storage_.data();
  std::size_t space = storage_.size();
  set_arena(static_cast<std::byte*>(
      std::align(kAlignment, static_cast<std::size_t>(own.extent), begin, space)));
}

}  // namespace qplan
