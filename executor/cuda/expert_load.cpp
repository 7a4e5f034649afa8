#include "executor/cuda/expert_load.h"

#include <algorithm>
#include <numeric>
#include <variant>
#include <vector>

#include "models/error.h"

namespace qplan {
namespace {

// Of a forward pass, once: gradients' products have the same rows.
bool is_noted(const Command& c) {
  return c.kind == CommandKind::op && !c.op->recomputed &&
         std::holds_alternative<GroupedGemm>(c.op->work) && c.op->role == Role::plain;
}

}  // namespace

std::optional<ExpertLoad> expert_load(std::span<const std::int32_t> counts, std::int64_t senders,
                                      std::int64_t experts, std::int64_t ranks) {
  const auto width = static_cast<std::size_t>(experts),
             each = width * static_cast<std::size_t>(senders);
  if (counts.size() < each) return std::nullopt;
  ExpertLoad mean{0, 0};
  const std::size_t products = counts.size() / each;
  for (std::size_t i = 0; i < products; ++i) {
    std::vector<std::int64_t> rows(width, 0);
    for (std::size_t at = 0; at < each; ++at) rows[at % width] += counts[i * each + at];
    const auto all =
        static_cast<double>(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}));
    const auto with_rows = std::ranges::count_if(rows, [](std::int64_t n) { return n > 0; });
    std::int64_t most = 0;
    const std::int64_t held = experts / ranks;
    for (auto first = rows.begin(); first != rows.end(); first += held) {
      most = std::max(most, std::accumulate(first, first + held, std::int64_t{0}));
    }
    mean.active += static_cast<double>(with_rows) / static_cast<double>(experts);
    mean.busiest += all > 0 ? static_cast<double>(most * ranks) / all : 1;
  }
  mean.active /= static_cast<double>(products);
  mean.busiest /= static_cast<double>(products);
  return mean;
}

ExpertLoadLog::ExpertLoadLog(const RankProgram& commands, std::int64_t senders,
                             std::int64_t experts)
    : each_(senders * experts) {
  room_ = each_ * std::ranges::count_if(commands.commands, is_noted);
  if (room_ > 0) memory_ = host_memory(room_ * std::int64_t{sizeof(std::int32_t)});
}

void ExpertLoadLog::note(const Command& command, const Tensor& counts, cudaStream_t stream) {
  if (!is_noted(command)) return;
  QPLAN_CHECK(counts.elements() == each_ && used_ + each_ <= room_,
              "a step has the products that its program says");
  const std::int64_t bytes = used_ * std::int64_t{sizeof(std::int32_t)};
  check(cudaMemcpyAsync(memory_.get() + bytes, counts.data,
                        static_cast<std::size_t>(counts.bytes()), cudaMemcpyDeviceToHost, stream));
  used_ += each_;
}

std::span<const std::int32_t> ExpertLoadLog::counts() const {
  const void* const first = memory_.get();
  return {static_cast<const std::int32_t*>(first), static_cast<std::size_t>(used_)};
}

}  // namespace qplan
