#pragma once
// A rank whose arena is a GPU's memory, with the libraries and the little memory beside the arena
// that its ops need.

#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "executor/cuda/attention_cudnn.h"
#include "executor/cuda/expert_load.h"
#include "executor/cuda/gemm_cublaslt.h"
#include "executor/cuda/handles.h"
#include "executor/cuda/offload.h"
#include "executor/rank.h"
#include "kernels/kernels.h"

namespace qplan {

class CudaRank : public Rank {
 public:
  // Takes all memory at once, on the current device.
  CudaRank(const RankJob& job, const RankProgram& commands, std::int64_t rank);

  void clear_arena(cudaStream_t stream);
  // Clears gradients and sums and brings the step's tokens to the device.
  void begin_step(cudaStream_t stream);
  // Loss and gradient norm of the step, once the device has finished it.
  void end_step();

  // One token id for each row of a microbatch, and its target; of multi-token prediction those one
  // further `ahead`, where behind a sequence's end there is none: -1.
  [[nodiscard]] const std::int32_t* ids(int microbatch, int ahead) const {
    return tokens_at(microbatch, ahead);
  }
  [[nodiscard]] const std::int32_t* targets(int microbatch, int ahead) const {
    return tokens_at(microbatch, 1 + ahead);
  }
  // Of each row of a microbatch, in its sequence.
  [[nodiscard]] const std::int32_t* positions_on_device() const {
    return static_cast<const std::int32_t*>(at_bytes(positions_.get()));
  }
  // The step's sums, kSums of them: squared gradients, losses, and those of multi-token prediction.
  // After the step's edge, of all ranks.
  static constexpr std::size_t kSums = 3;
  [[nodiscard]] double* sums() const { return static_cast<double*>(at_bytes(sums_.get())); }
  [[nodiscard]] double* squares() const { return sums(); }
  [[nodiscard]] double* losses(int ahead) const { return sums() + 1 + ahead; }
  [[nodiscard]] kernels::Rotation rotation() const { return rotation_; }
  // Of layers that do not rotate.
  [[nodiscard]] kernels::QueryFactors temperatures() const { return temperatures_; }
  // Rows of each expert in a command's microbatch, on the host: known once a step, for which the
  // host waits until they are counted. bring_counts() has them copied as soon as that is so, while
  // the device goes on: the host enqueues the exchange while tokens are being sorted for it.
  void bring_counts(const Command& command, const Tensor& counts, cudaStream_t stream);
  const std::vector<std::int32_t>& expert_counts(const Command& command, const Tensor& counts,
                                                 cudaStream_t stream);
  // Where products of experts leave what they were given, of a step that keeps it; else null.
  ExpertLoadLog* load_log = nullptr;
  // Of the compute stream.
  [[nodiscard]] void* scratch() const { return scratch_.get(); }
  // The optimizer's part on the host, of a block that has one.
  [[nodiscard]] HostShare& host_share(int instance) { return *host_shares_.at(instance); }
  // Device memory besides the arena, libraries' workspaces included.
  [[nodiscard]] std::int64_t extra_bytes() const { return extra_bytes_; }

  // Until an event has come, without sleep, or too much time has passed: the backend's.
  std::function<void(const OwnedEvent&)> wait_for;

  CublasLt blas;
  CudnnAttention attention;

 private:
  static void* at_bytes(std::byte* p) { return p; }
  [[nodiscard]] const std::int32_t* tokens_at(int microbatch, int shift) const {
    const auto* first = static_cast<const std::int32_t*>(at_bytes(tokens_.get()));
    return first + (shifts_ * microbatch + shift) * rows_;
  }
  DeviceMemory take(std::int64_t bytes);
  void make_rotation();
  void make_temperatures();

  int shifts_ = 2;  // of a row's token: itself, the next one, and what is predicted beyond
  std::int64_t rows_ = 0, token_bytes_ = 0, extra_bytes_ = CublasLt::kWorkspaceBytes;
  DeviceMemory arena_memory_, scratch_, sums_, tokens_, positions_, angles_, query_factors_;
  HostMemory tokens_on_host_, sums_on_host_;
  kernels::Rotation rotation_;
  kernels::QueryFactors temperatures_;
  std::map<int, std::unique_ptr<HostShare>> host_shares_;
  using CountsOf = std::pair<int, int>;  // instance, microbatch
  std::map<CountsOf, std::vector<std::int32_t>> counts_;
  // On their way to the host: of a few microbatches at once.
  struct Arriving {
    CountsOf of = kNobodys;
    std::int64_t bytes = 0, room = 0;
    HostMemory memory;
    OwnedEvent copied = make_event();
  };
  static constexpr CountsOf kNobodys{-1, -1};
  std::array<Arriving, 4> arriving_;
  std::size_t brought_ = 0;
};

}  // namespace qplan
