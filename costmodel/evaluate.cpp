#include "costmodel/evaluate.h"

#include <algorithm>
#include <cmath>

#include "costmodel/plan_view.h"

namespace qplan {
namespace {

bool has_edge(BlockKind kind) {
  return kind == BlockKind::stage_entry || kind == BlockKind::stage_exit;
}

}  // namespace

CostModel::CostModel(const ModelSpec& model, const Recipe& recipe, const HardwareProfile& hardware,
                     JobFacts facts, Bytes memory_cap)
    : model_(model),
      recipe_(recipe),
      hardware_(hardware),
      facts_(facts),
      memo_(std::make_unique<Memo>()) {
  facts_.nvlink_domain = hardware.link.nvlink_domain;
  capacity_ =
      memory_cap.value() > 0 ? memory_cap : hardware.gpu.usable_memory * memory_share(model);
}

CostModel::~CostModel() = default;

double memory_share(const ModelSpec& model) {
  return model.moe ? 0.92 : 0.95;
}

CostModel::PlanView CostModel::view(const ParallelPlan& plan) const {
  PlanView v;
  v.plan = &plan;
  v.base = base_shape(model_, plan, recipe_, facts_.moe_imbalance);
  v.stages = stage_runs(model_, plan, recipe_, v.base, facts_);
  v.same_as.resize(v.stages.size());
  for (std::size_t i = 0; i < v.stages.size(); ++i) {
    v.same_as[i] = static_cast<int>(i);
    // Equal stages are neighbours, except at a change of layers: look back a little.
    for (std::size_t back = 1; back <= 2 && back <= i; ++back) {
      const auto other = static_cast<std::size_t>(v.same_as[i - back]);
      const StageRuns &a = v.stages[i], &b = v.stages[other];
      const bool same = a.size() == b.size() &&
                        std::equal(a.begin(), a.end(), b.begin(), [](const Run& x, const Run& y) {
                          return x.count == y.count && x.shape == y.shape;
                        });
      if (same) {
        v.same_as[i] = static_cast<int>(other);
        break;
      }
    }
  }
  v.schedule = {.kind = plan.schedule,
                .pp = plan.pp,
                .vpp = chunks_per_rank(plan),
                .microbatches = static_cast<int>(plan.num_microbatches())};
  v.split = splits_backward(plan.schedule);
  return v;
}

std::vector<NamedReserve> framework_reserves(const ModelSpec& model, const ParallelPlan& plan,
                                             const Recipe&) {
  std::vector<NamedReserve> reserves;
  // physics.md 5.5: dispatcher buffers 1-4 GB; CUDA graphs a few GB, over 10 GB with pipelining.
  if (model.moe && plan.ep > 1 &&
      (plan.moe_dispatcher == MoeDispatcher::deepep ||
       plan.moe_dispatcher == MoeDispatcher::hybridep)) {
    reserves.push_back({"expert-parallel dispatcher buffers", gib(2.5)});
  }
  if (plan.cuda_graph) reserves.push_back({"CUDA graph pools", gib(plan.pp > 1 ? 10 : 3)});
  return reserves;
}

int communicator_count(const ParallelPlan& plan) {
  int count = 1;  // world
  const auto add = [&count](std::int64_t size) { count += size > 1 ? 1 : 0; };
  add(plan.tp);
  add(plan.cp);
  add(std::int64_t{plan.dp} * plan.cp);
  add(plan.ep);
  add(plan.etp);
  add(plan.edp());
  add(plan.pp);
  add(plan.pp);
  return count;
}

MemoryEstimate CostModel::memory(const ParallelPlan& plan) const {
  const PlanView v = view(plan);
  const std::size_t stage_count = v.stages.size();

  struct StageUse {
    PersistentBytes persistent;
    MemoryUse forward, backward, backward_input, backward_weight;
    std::vector<const Slot*> shared;
  };
  std::vector<StageUse> uses(stage_count);
  const Bytes wire = boundary_bytes(model_, v.base);
  const auto crossing = [&](std::size_t from, std::size_t to) {
    return rank_of_stage(plan.schedule, plan.pp, static_cast<int>(from)) !=
           rank_of_stage(plan.schedule, plan.pp, static_cast<int>(to));
  };
  for (std::size_t i = 0; i < stage_count; ++i) {
    StageUse& use = uses[i];
    if (v.same_as[i] != static_cast<int>(i)) {
      use = uses[static_cast<std::size_t>(v.same_as[i])];
      continue;
    }
    for (const Run& run : v.stages[i]) {
      const DelayKey key{compute_shape(run.shape), 0, false, v.split};
      const BlockMemory& block = memo_->memory.get(
          key, [&] { return memory_of(build_block(model_, recipe_, key.shape), v.split); });
      if (!has_edge(run.shape.kind)) {
        const BlockShape states = state_shape(run.shape);
        const PersistentBytes& persistent = memo_->states.get(
            states, [&] { return persistent_bytes(build_states(model_, recipe_, states)); });
        const double n = run.count;
        use.persistent.weights += persistent.weights * n;
        use.persistent.gradients += persistent.gradients * n;
        use.persistent.optimizer += persistent.optimizer * n;
      }
      use.forward = then(use.forward, power(block.forward, run.count));
      use.backward = then(power(block.backward, run.count), use.backward);
      use.backward_input = then(power(block.backward_input, run.count), use.backward_input);
      use.backward_weight = then(power(block.backward_weight, run.count), use.backward_weight);
      for (const Slot& slot : block.shared) use.shared.push_back(&slot);
    }
  }

  // The boundary's buffers: received before, sent (and freed) after.
  const auto with_wires = [wire](MemoryUse use, bool in, bool out) {
    if (in) use = then({wire, wire}, use);
    if (out) use = then(use, {-wire, Bytes(0)});
    return use;
  };
  ScheduleShape shape = v.schedule;
  shape.microbatches = microbatches_for_memory(shape);
  const RunLengths& lists = memo_->schedules.get(shape, [&] {
    RunLengths all;
    for (const auto& actions : build_schedule(shape)) all.push_back(run_length(actions));
    return all;
  });

  Bytes reserves;
  for (const NamedReserve& r : framework_reserves(model_, plan, recipe_)) reserves += r.bytes;
  const Bytes communicators = recipe_.communicator * static_cast<double>(communicator_count(plan));
  MemoryEstimate estimate;
  Bytes host;
  for (std::size_t r = 0; r < lists.size(); ++r) {
    StageMemory memory;
    std::vector<const Slot*> shared;
    for (std::size_t i = 0; i < stage_count; ++i) {
      if (rank_of_stage(plan.schedule, plan.pp, static_cast<int>(i)) != static_cast<int>(r))
        continue;
      memory.weights += uses[i].persistent.weights;
      memory.gradients += uses[i].persistent.gradients;
      memory.optimizer += uses[i].persistent.optimizer;
      shared.insert(shared.end(), uses[i].shared.begin(), uses[i].shared.end());
    }
    for (std::size_t i = 0; i < shared.size(); ++i) {
      const auto same = [&](const Slot* other) {
        return other->name == shared[i]->name && other->shape == shared[i]->shape;
      };
      const auto end = shared.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::none_of(shared.begin(), end, same)) memory.buffers += shared[i]->bytes();
    }
    memory.buffers += reserves;
    MemoryUse step;
    for (const ActionRun& run : lists[r]) {
      MemoryUse pattern;
      for (const Action& a : run.pattern) {
        const auto i = static_cast<std::size_t>(a.stage);
        const bool before = i > 0 && crossing(i - 1, i);
        const bool after = i + 1 < stage_count && crossing(i, i + 1);
        MemoryUse use;
        switch (a.kind) {
          case ActionKind::forward:
            use = with_wires(uses[i].forward, before, after);
            break;
          case ActionKind::backward:
            use = with_wires(uses[i].backward, after, before);
            break;
          case ActionKind::backward_input:
            use = with_wires(uses[i].backward_input, after, before);
            break;
          case ActionKind::backward_weight:
            use = uses[i].backward_weight;
            break;
        }
        pattern = then(pattern, use);
      }
      step = then(step, power(pattern, run.count));
    }
    memory.activations = step.peak;
    memory.peak =
        memory.weights + memory.gradients + memory.optimizer + memory.buffers + memory.activations;
    memory.reserved = memory.peak * (1 + recipe_.allocator_overhead) + recipe_.allocator_slack;
    memory.device = memory.reserved + recipe_.context + communicators;
    estimate.stages.push_back(memory);
    if (memory.device > estimate.stages[static_cast<std::size_t>(estimate.worst)].device) {
      estimate.worst = static_cast<int>(r);
    }
  }
  // Offloaded optimizer: fp32 master, m, v and a gradient copy, 16 bytes a parameter
  // (frameworks.md 2.2).
  if (plan.offload.optimizer > 0 || plan.offload.params) {
    const RankParameters none{};
    double parameters = 0;
    for (std::size_t i = 0; i < stage_count; ++i) {
      for (const Run& run : v.stages[i]) {
        const RankParameters own =
            has_edge(run.shape.kind) ? none : rank_parameters(model_, run.shape);
        parameters += run.count * (static_cast<double>(own.dense) / v.base.dense_shard +
                                   static_cast<double>(own.expert) / v.base.expert_shard);
      }
    }
    const double per_rank = parameters / plan.pp;
    host = Bytes(per_rank * (16 * plan.offload.optimizer + (plan.offload.params ? 2 : 0)) *
                 hardware_.link.gpus_per_node);
    if (plan.offload.nvme) host = host * 0.1;  // only the staging buffers stay in memory (assumed)
  }
  estimate.host_per_node = host;
  return estimate;
}

bool CostModel::fits(const MemoryEstimate& memory) const {
  return memory.worst_stage().device <= capacity_ && memory.host_per_node <= hardware_.host.memory;
}

Bytes CostModel::device_peak(const ParallelPlan& plan) const {
  return memory(plan).worst_stage().device;
}

}  // namespace qplan
