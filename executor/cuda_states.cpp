// The optimizer's step and the gradient norm, over what this rank keeps of each block.

#include <algorithm>
#include <cmath>

#include "executor/cuda_ops.h"
#include "models/error.h"

namespace qplan {
namespace {

// Neighbouring elements of a shard that are treated alike: one launch.
struct OwnRun {
  std::int64_t packed = 0, shard = 0, count = 0;
  bool decayed = false;  // matrices are; norms, biases and other vectors are not
  bool counted = false;  // in the gradient norm: no rank before this one holds them
};

std::vector<OwnRun> own_runs(const CudaRank& rank, int instance) {
  std::vector<OwnRun> runs;
  // In their order in memory: the parameters of experts lie expert by expert.
  std::vector<StateRun> found = rank.state_runs(instance);
  std::ranges::sort(found, {}, &StateRun::packed);
  for (const StateRun& run : found) {
    const PackedParameter& p = rank.block(instance).parameters[run.parameter];
    if (!is_trained(p.whole.role)) continue;
    const OwnRun next{run.packed, run.shard, run.count, !is_vector(p.whole),
                      rank.is_first_holder(instance, p)};
    if (!runs.empty()) {
      OwnRun& last = runs.back();
      if (last.packed + last.count == next.packed && last.shard + last.count == next.shard &&
          last.decayed == next.decayed && last.counted == next.counted) {
        last.count += next.count;
        continue;
      }
    }
    runs.push_back(next);
  }
  return runs;
}

}  // namespace

void launch_sum_of_squares(CudaRank& rank, const Command& c, cudaStream_t stream) {
  const bool sharded = rank.shape(c.instance).zero >= 2;
  const Tensor slot = rank.tensor(c, c.reads[0]);
  for (const OwnRun& run : own_runs(rank, c.instance)) {
    if (!run.counted) continue;
    const Tensor part = slot.part(sharded ? run.shard : run.packed, 1, run.count);
    kernels::sum_of_squares(rank.squares(), float_of(part), run.count,
                            static_cast<double*>(rank.scratch()), stream);
  }
}

void launch_adamw(CudaRank& rank, const Command& c, cudaStream_t stream) {
  const BlockShape& shape = rank.shape(c.instance);
  const OptimizerState state = rank.device_state(c.instance);
  const Tensor gradients = rank.held(c.instance, Storage::gradient);
  const Tensor weights = rank.held(c.instance, Storage::weight);
  const math::AdamWSettings& s = rank.job.optimizer.adamw;
  const auto step = static_cast<double>(rank.step);
  kernels::AdamW settings{.lr = static_cast<float>(s.lr),
                          .beta1 = static_cast<float>(s.beta1),
                          .beta2 = static_cast<float>(s.beta2),
                          .epsilon = static_cast<float>(s.epsilon),
                          .weight_decay = 0,
                          .correction1 = static_cast<float>(1 - std::pow(s.beta1, step)),
                          .correction2 = static_cast<float>(1 - std::pow(s.beta2, step)),
                          .clip = static_cast<float>(rank.job.optimizer.clip_grad),
                          .squares = rank.squares()};
  for (const OwnRun& run : own_runs(rank, c.instance)) {
    settings.weight_decay = run.decayed ? static_cast<float>(s.weight_decay) : 0;
    const auto own = [&](const Tensor& array) { return float_of(array.part(run.shard, 1, 1)); };
    const std::int64_t gradient = shape.zero >= 2 ? run.shard : run.packed;
    const std::int64_t weight = shape.zero == 3 ? run.shard : run.packed;
    kernels::adamw(bf16_of(weights.part(weight, 1, 1)), own(state.main_params), own(state.moment1),
                   own(state.moment2), float_of(gradients.part(gradient, 1, 1)), run.count,
                   settings, stream);
  }
}

}  // namespace qplan
