// What several of Megatron's flags say together, once all of them are read: stages, schedule, and
// words that one flag alone leaves open.

#include <algorithm>

#include "planner/frameworks/megatron/megatron.h"

namespace qplan {

int counted_layers(const Draft& draft, const ModelSpec& model) {
  return static_cast<int>(model.num_layers) + (draft.counts_embedding ? 1 : 0) +
         (draft.counts_loss ? 1 : 0);
}

std::vector<int> uneven_stages(const Draft& draft, const ModelSpec& model) {
  const int pp = draft.plan.pp, vpp = draft.plan.vpp;
  if (draft.counts_embedding || draft.counts_loss) {
    const int counted = counted_layers(draft, model);
    if (counted % (pp * vpp) != 0) return {};
    std::vector<int> stages(static_cast<std::size_t>(pp * vpp), counted / (pp * vpp));
    if (draft.counts_embedding) --stages.front();
    if (draft.counts_loss) --stages.back();
    return stages;
  }
  const int first = draft.first_stage_layers.value_or(0);
  const int last = draft.last_stage_layers.value_or(0);
  const int others = pp - (first > 0 ? 1 : 0) - (last > 0 ? 1 : 0);
  const int rest = static_cast<int>(model.num_layers) - first - last;
  const bool divides =
      others > 0 ? rest > 0 && rest % (others * vpp) == 0 : others == 0 && rest == 0;
  if (!divides || first % vpp != 0 || last % vpp != 0) return {};
  std::vector<int> ranks(static_cast<std::size_t>(pp), others == 0 ? 0 : rest / others);
  if (first > 0) ranks.front() = first;
  if (last > 0) ranks.back() = last;
  // Chunk c of rank r holds 1/vpp of the rank's layers; stages are in the order of the layers.
  std::vector<int> stages;
  for (int chunk = 0; chunk < vpp; ++chunk) {
    for (const int layers : ranks) stages.push_back(layers / vpp);
  }
  return stages;
}

void settle_megatron(Draft& draft, const ModelSpec& model) {
  ParallelPlan& plan = draft.plan;
  plan.etp = model.moe ? draft.etp.value_or(draft.expert_tensor_follows ? plan.tp : 1) : 1;
  if (!model.moe) plan.moe_dispatcher = MoeDispatcher::alltoall;
  plan.dropout =
      draft.attention_dropout.value_or(plan.dropout) || draft.hidden_dropout.value_or(plan.dropout);
  if (draft.layers_per_virtual_stage && plan.pp > 1) {
    const int per_rank = counted_layers(draft, model) / plan.pp;
    plan.vpp = std::max(1, per_rank / *draft.layers_per_virtual_stage);
  }
  if (draft.first_stage_layers || draft.last_stage_layers || draft.counts_embedding ||
      draft.counts_loss) {
    plan.pipeline_layout = plan.pp > 1 ? uneven_stages(draft, model) : std::vector<int>{};
  }
  plan.schedule =
      plan.vpp > 1 && plan.pp > 1 ? ScheduleKind::interleaved : ScheduleKind::one_f_one_b;
  plan.recompute.layers = std::max(0, plan.recompute.layers);
  if (plan.sequence_parallel && plan.tp == 1) plan.sequence_parallel = false;  // arguments.py:1436
  if (draft.precision_aware && plan.offload.optimizer == 0 &&
      plan.main_params_dtype == DType::fp32) {
    plan.main_params_dtype = DType::bf16;  // with a 2-byte remainder (distrib_optimizer.py:1008)
  }
}

}  // namespace qplan
