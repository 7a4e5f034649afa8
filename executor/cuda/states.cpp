// The optimizer's step and the gradient norm, over what this rank keeps of each block.

#include <algorithm>
#include <cmath>

#include "executor/cuda/ops.h"
#include "models/error.h"

namespace qplan {
namespace {

// Neighbouring elements of the array that a block's gradients are in.
struct Span {
  std::int64_t begin = 0, count = 0;
};

// What this rank counts, decayed or not: norms between the matrices of a layer are no reason for
// launches of their own.
std::vector<Span> counted_spans(const CudaRank& rank, int instance) {
  const bool sharded = rank.shape(instance).zero >= 2;
  std::vector<Span> spans;
  for (const OwnRun& run : own_runs(rank, instance)) {
    if (!run.counted) continue;
    const std::int64_t begin = sharded ? run.shard : run.packed;
    if (!spans.empty() && spans.back().begin + spans.back().count == begin) {
      spans.back().count += run.count;
    } else {
      spans.push_back({begin, run.count});
    }
  }
  return spans;
}

// What one launch steps: runs that lie side by side in every array, decayed or not.
struct Stretch {
  std::int64_t packed = 0, shard = 0;
  kernels::AdamWRuns runs;
};

// Of what is not on the host, whose elements come first.
std::vector<Stretch> stretches(const std::vector<OwnRun>& runs, std::int64_t host) {
  std::vector<Stretch> found;
  for (const OwnRun& run : runs) {
    const std::int64_t skipped = std::clamp<std::int64_t>(host - run.shard, 0, run.count);
    const std::int64_t shard = run.shard + skipped, packed = run.packed + skipped;
    const std::int64_t count = run.count - skipped;
    if (count == 0) continue;
    const auto follows = [&](const Stretch& s) {
      const std::int64_t n = s.runs.ends[s.runs.count - 1];
      return s.shard + n == shard && s.packed + n == packed &&
             s.runs.count < kernels::AdamWRuns::kMost;
    };
    if (found.empty() || !follows(found.back())) found.push_back({packed, shard, {}});
    kernels::AdamWRuns& own = found.back().runs;
    const std::int64_t before = own.count > 0 ? own.ends[own.count - 1] : 0;
    if (run.decayed) own.decayed |= 1U << own.count;
    own.ends[own.count++] = before + count;
  }
  return found;
}

}  // namespace

void launch_sum_of_squares(CudaRank& rank, const Command& c, cudaStream_t stream) {
  const Tensor slot = rank.tensor(c, c.reads[0]);
  for (const Span& span : counted_spans(rank, c.instance)) {
    const Tensor part = slot.part(span.begin, 1, span.count);
    kernels::sum_of_squares(rank.squares(), float_of(part), span.count,
                            static_cast<double*>(rank.scratch()), stream);
  }
}

// Of what is not on the host: the last elements of the shard.
void launch_adamw(CudaRank& rank, const Command& c, cudaStream_t stream) {
  const std::int64_t host = rank.offloaded(c.instance);
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
                          .weight_decay = static_cast<float>(s.weight_decay),
                          .correction1 = static_cast<float>(1 - std::pow(s.beta1, step)),
                          .correction2 = static_cast<float>(1 - std::pow(s.beta2, step)),
                          .clip = static_cast<float>(rank.job.optimizer.clip_grad),
                          .squares = rank.squares()};
  for (const Stretch& stretch : stretches(own_runs(rank, c.instance), host)) {
    const auto own = [&](const Tensor& array) {
      return float_of(array.part(stretch.shard - host, 1, 1));
    };
    const std::int64_t gradient = shape.zero >= 2 ? stretch.shard : stretch.packed;
    const std::int64_t weight = shape.zero == 3 ? stretch.shard : stretch.packed;
    kernels::adamw(bf16_of(weights.part(weight, 1, 1)), own(state.main_params), own(state.moment1),
                   own(state.moment2), float_of(gradients.part(gradient, 1, 1)), stretch.runs,
                   settings, stream);
  }
}

void launch_host_copy(CudaRank& rank, const Command& c, const HostCopy& work, cudaStream_t stream) {
  HostShare& share = rank.host_share(c.instance);
  if (work.to_host) {
    share.bring_gradients(rank.held(c.instance, Storage::gradient), rank.squares(), stream);
  } else {
    share.send_weights(rank.held(c.instance, Storage::weight), stream);
  }
}

void launch_host_adam(CudaRank& rank, const Command& c, cudaStream_t stream) {
  rank.host_share(c.instance).step(stream);
}

}  // namespace qplan
