#pragma once
// The part of an optimizer that a plan keeps on the host: AdamW runs there on the rank's share of
// the cores, between a copy of its gradients and a copy of the parameters that it made.

#include <cuda_runtime_api.h>

#include <vector>

#include "executor/cuda/handles.h"
#include "executor/host_adamw.h"
#include "executor/rank.h"

namespace qplan {

// Neighbouring elements of a shard that are treated alike.
struct OwnRun {
  std::int64_t packed = 0, shard = 0, count = 0;
  bool decayed = false;  // matrices are; norms, biases and other vectors are not
  bool counted = false;  // in the gradient norm: no rank before this one holds them
};
std::vector<OwnRun> own_runs(const Rank& rank, int instance);

// A GPU's share of its node's cores, which is what host_adam_price() counts with. A job on some of
// a node's GPUs leaves the others' share to others.
std::int64_t cores_of_gpu();

// Of one block: the first elements of its shard.
class HostShare {
 public:
  HostShare(Rank& rank, int instance);

  // In this order, each on its stream: gradients and their squares' sum come, AdamW steps, the
  // working copies go. The block's gradients are in `gradients`, its parameters in `weights`, by
  // shard or packed as its ZeRO stage has them.
  void bring_gradients(const Tensor& gradients, const double* squares, cudaStream_t stream);
  void step(cudaStream_t stream);
  void send_weights(const Tensor& weights, cudaStream_t stream);

 private:
  void step_now();
  template <class Visit>
  void each_run(bool by_shard, Visit visit) const;

  Rank& rank_;
  int zero_;
  OptimizerState state_;
  std::vector<OwnRun> runs_;
  std::vector<HostAdamW> arrays_;  // of each run
  std::int64_t step_ = 0, cores_ = 1;
  HostMemory gradients_, working_, squares_;  // of all elements, page-locked
};

}  // namespace qplan
