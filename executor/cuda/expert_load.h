#pragma once
// How the routers of a step spread tokens over experts: what a prediction can only assume.

#include <cstdint>
#include <optional>
#include <span>

#include "executor/cuda/handles.h"
#include "executor/run.h"
#include "executor/tensor.h"
#include "models/program/rank_program.h"

namespace qplan {

// Of counts by product, sending rank and expert, of which `ranks` hold equal parts.
std::optional<ExpertLoad> expert_load(std::span<const std::int32_t> counts, std::int64_t senders,
                                      std::int64_t experts, std::int64_t ranks);

// Keeps the counts that the forward products of a rank's experts are given in one step.
class ExpertLoadLog {
 public:
  // `senders`: ranks whose counts a product knows.
  ExpertLoadLog(const RankProgram& commands, std::int64_t senders, std::int64_t experts);
  // counts: (senders, experts) int32, copied behind what the stream has been given.
  void note(const Command& command, const Tensor& counts, cudaStream_t stream);
  // Once the stream has ended.
  [[nodiscard]] std::span<const std::int32_t> counts() const;

 private:
  std::int64_t each_, room_ = 0, used_ = 0;  // numbers: of a product, of all, so far
  HostMemory memory_;
};

}  // namespace qplan
