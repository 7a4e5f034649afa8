#include "costmodel/least_memory.h"

#include <mutex>

#include "costmodel/fold/attention_choice.h"
#include "costmodel/fold/host_states.h"
#include "models/program/block.h"
#include "models/program/blocks.h"

namespace qplan {

LeastMemory::Held LeastMemory::held_by_layers(const ParallelPlan& plan,
                                              const BlockShape& base) const {
  const ModelSpec& model = cost_.model();
  ParallelPlan whole = plan;  // one stage holds all layers
  whole.pp = whole.vpp = 1;
  whole.schedule = ScheduleKind::one_f_one_b;
  whole.pipeline_layout.clear();
  whole.recompute = {};
  Held held;
  for (const StageRuns& stage :
       stage_list(model, whole, cost_.recipe(), base, cost_.facts()).distinct) {
    for (const Run& run : stage) {
      if (run.shape.kind != BlockKind::decoder) continue;
      const BlockShape states = with_states_of(state_shape(run.shape), base);
      const auto count = static_cast<double>(run.count);
      held.device += persistent_bytes(build_states(model, cost_.recipe(), states)).total() * count;
      const RankParameters own = rank_parameters(model, states);
      held.offloaded += count * (static_cast<double>(own.dense) / base.dense_shard +
                                 static_cast<double>(own.expert) / base.expert_shard);
    }
  }
  return held;
}

LeastMemory::Held LeastMemory::held(const ParallelPlan& plan, const BlockShape& base) {
  const BlockShape key = state_shape(base);
  {
    const std::shared_lock lock(mutex_);
    const auto it = known_.find(key);
    if (it != known_.end()) return it->second;
  }
  const Held made = held_by_layers(plan, base);
  const std::unique_lock lock(mutex_);
  return known_.try_emplace(key, made).first->second;
}

LeastMemory::Needs LeastMemory::needs(const ParallelPlan& plan) {
  if (!cost_.kinds().empty()) return {};  // stages on GPUs of several sizes
  const HardwareProfile& hardware = cost_.hardware();
  const BlockShape base =
      base_shape(cost_.model(), plan_on(hardware, plan, cost_.recipe()), cost_.recipe(),
                 cost_.facts().moe_imbalance, cost_.facts().turns_fp8);
  const Held layers = held(plan, base);
  // The fullest rank of a pipeline holds no less than the mean.
  const Bytes device = layers.device * (1.0 / plan.pp);
  const HostStates host =
      host_states(plan, layers.offloaded / plan.pp, host_step(cost_.recipe(), base, 1), hardware);
  return {device, host.held > host.room * kRounding};
}

bool LeastMemory::cannot_fit(const ParallelPlan& plan) {
  const Needs least = needs(plan);
  return least.more_than_host || least.device > cost_.capacity() * kRounding;
}

}  // namespace qplan
