#include "executor/cuda/offload.h"

#include <algorithm>
#include <cmath>
#include <thread>

namespace qplan {
namespace {

float* floats_of(const Tensor& array) {
  void* const data = array.data;
  return static_cast<float*>(data);
}

}  // namespace

std::vector<OwnRun> own_runs(const Rank& rank, int instance) {
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

std::int64_t cores_of_gpu() {
  int devices = 1;
  check(cudaGetDeviceCount(&devices));
  const auto cores = static_cast<std::int64_t>(std::thread::hardware_concurrency());
  return std::max<std::int64_t>(cores / devices, 1);
}

HostShare::HostShare(Rank& rank, int instance)
    : rank_(rank),
      zero_(rank.shape(instance).zero),
      state_(rank.host_state(instance)),
      cores_(cores_of_gpu()) {
  const std::int64_t all = rank.offloaded(instance);
  for (OwnRun run : own_runs(rank, instance)) {
    run.count = std::min(run.count, all - run.shard);
    if (run.count > 0) runs_.push_back(run);
  }
  gradients_ = host_memory(4 * all);
  working_ = host_memory(2 * all);
  squares_ = host_memory(sizeof(double));
  for (const OwnRun& run : runs_) {
    const std::int64_t at = run.shard;
    arrays_.push_back({numbers_in<float>(gradients_) + at, floats_of(state_.main_params) + at,
                       floats_of(state_.moment1) + at, floats_of(state_.moment2) + at,
                       numbers_in<std::uint16_t>(working_) + at,
                       static_cast<std::size_t>(run.count), run.decayed});
  }
}

template <class Visit>
void HostShare::each_run(bool by_shard, Visit visit) const {
  for (const OwnRun& run : runs_) visit(run, by_shard ? run.shard : run.packed);
}

void HostShare::bring_gradients(const Tensor& gradients, const double* squares,
                                cudaStream_t stream) {
  step_ = rank_.step;
  check(cudaMemcpyAsync(squares_.get(), squares, sizeof(double), cudaMemcpyDeviceToHost, stream));
  each_run(zero_ >= 2, [&](const OwnRun& run, std::int64_t place) {
    check(cudaMemcpyAsync(numbers_in<float>(gradients_) + run.shard,
                          gradients.part(place, 1, 1).data, static_cast<std::size_t>(4 * run.count),
                          cudaMemcpyDeviceToHost, stream));
  });
}

void HostShare::step(cudaStream_t stream) {
  const auto call = [](void* share) { static_cast<HostShare*>(share)->step_now(); };
  check(cudaLaunchHostFunc(stream, call, this));
}

// On the driver's thread, where nothing may throw and no CUDA function may be called.
void HostShare::step_now() {
  const double norm = std::sqrt(*numbers_in<double>(squares_));
  const double scale = math::clip_scale(norm, rank_.job.optimizer.clip_grad);
  host_adamw(rank_.job.optimizer.adamw, step_, scale, arrays_, cores_);
}

void HostShare::send_weights(const Tensor& weights, cudaStream_t stream) {
  each_run(zero_ == 3, [&](const OwnRun& run, std::int64_t place) {
    check(cudaMemcpyAsync(weights.part(place, 1, 1).data, working_.get() + 2 * run.shard,
                          static_cast<std::size_t>(2 * run.count), cudaMemcpyHostToDevice, stream));
  });
}

}  // namespace qplan
