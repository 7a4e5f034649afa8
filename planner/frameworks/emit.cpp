#include "planner/frameworks/emit.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"
#include "planner/frameworks/deepspeed/deepspeed.h"
#include "planner/frameworks/megatron/bridge.h"
#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/torch/torch.h"
#include "planner/frameworks/writers.h"
#include "planner/search/search.h"

namespace qplan {
namespace {

std::vector<std::span<const Limit>> limits_of(Framework framework) {
  switch (framework) {
    case Framework::megatron:
      return {megatron_limits()};
    case Framework::megatron_bridge:
      return {megatron_limits(), bridge_limits()};
    case Framework::deepspeed:
      return {deepspeed_limits(), trainer_limits()};
    case Framework::megatron_deepspeed:
      return {megatron_deepspeed_limits()};
    case Framework::fsdp2:
      return {accelerate_limits(), trainer_limits()};
    case Framework::torchtitan:
      return {torchtitan_limits()};
    case Framework::slime:
      return {megatron_limits(), slime_limits()};
  }
  return {};
}

// Bridge's recipes bring layers that qplan does not write as Megatron's flags, and its training
// takes the loss that Megatron-LM's refuses.
bool holds_for(Framework framework, const Limit& limit) {
  return framework != Framework::megatron_bridge ||
         (limit.rule != "unwritten_attention" && limit.rule != "whole_rotary_base" &&
          limit.rule != "loss_of_te");
}

bool can_write(Framework framework, const Subject& subject, const ClusterLimits& limits) {
  if (!broken_rule(subject.model, subject.plan, recipe_of(subject.recipe), limits).empty()) {
    return false;
  }
  for (const auto& table : limits_of(framework)) {
    for (const Limit& limit : table) {
      if (holds_for(framework, limit) && limit.broken(subject)) return false;
    }
  }
  return true;
}

// Words that may be set back, the dearest last: what the plan is about goes when nothing else
// helps.
struct Change {
  std::string_view words;
  void (*apply)(ParallelPlan&, const ParallelPlan& defaults);
};

using P = ParallelPlan;

template <auto... Members>
void set_back(P& plan, const P& defaults) {
  ((plan.*Members = defaults.*Members), ...);
}

// Ranks that a degree gives up become data parallel.
template <auto Member>
void give_up(P& plan, const P&) {
  plan.dp *= plan.*Member;
  plan.*Member = 1;
}

constexpr auto kChanges = std::to_array<Change>({
    {"kernels", set_back<&P::compile, &P::loss>},
    {"deterministic", set_back<&P::deterministic>},
    {"overlap", set_back<&P::overlap>},
    {"states", set_back<&P::grad_dtype, &P::main_params_dtype, &P::moment_dtype>},
    {"master weights",
     [](P& p, const P&) {
       p.main_params_dtype = p.main_params_dtype == DType::fp32 ? DType::bf16 : DType::fp32;
     }},
    {"dispatcher", set_back<&P::moe_dispatcher>},
    {"capacity", set_back<&P::moe_capacity_factor, &P::moe_token_drop_policy>},
    {"permute_fusion", set_back<&P::moe_permute_fusion>},
    {"fp8_param_gather", set_back<&P::fp8_param_gather>},
    {"attention_backend", set_back<&P::attention_backend>},
    {"dropout", set_back<&P::dropout>},
    {"cuda_graph", set_back<&P::cuda_graph, &P::cuda_graph_scope>},
    {"recompute",
     [](P& p, const P&) {
       p.recompute = {RecomputeKind::full, {}, 0};
     }},
    {"offload", set_back<&P::offload>},
    {"zero", [](P& p, const P& d) { p.zero = d.zero; }},
    {"cp_comm",
     [](P& p, const P& d) { p.cp_comm = p.cp_comm == d.cp_comm ? CpComm::all_gather : d.cp_comm; }},
    {"sequence_parallel", [](P& p, const P&) { p.sequence_parallel = !p.sequence_parallel; }},
    {"fsdp_shard", set_back<&P::fsdp_shard>},
    {"precision", set_back<&P::precision>},
    {"stages",
     [](P& p, const P&) {
       p.pipeline_layout.clear();
       p.vpp = 1;
       p.schedule = ScheduleKind::one_f_one_b;
     }},
    {"etp", [](P& p, const P&) { p.etp = 1; }},
    {"ep", [](P& p, const P&) { p.ep = 1; }},
    {"cp", give_up<&P::cp>},
    {"pp",
     [](P& p, const P& d) {
       give_up<&P::pp>(p, d);
       p.pipeline_layout.clear();
       p.vpp = 1;
       p.schedule = ScheduleKind::one_f_one_b;
     }},
    {"tp",
     [](P& p, const P& d) {
       give_up<&P::tp>(p, d);
       p.sequence_parallel = false;
     }},
});

}  // namespace

RecipeKind recipe_for(Framework framework, RecipeKind of_plan) {
  switch (framework) {
    case Framework::megatron:
      return of_plan == RecipeKind::megatron_fsdp ? of_plan : RecipeKind::megatron;
    case Framework::megatron_bridge:
    case Framework::slime:
      return RecipeKind::megatron;
    case Framework::deepspeed:
      return RecipeKind::deepspeed;
    case Framework::megatron_deepspeed:
      return RecipeKind::megatron_deepspeed;
    case Framework::fsdp2:
      return RecipeKind::fsdp2;
    case Framework::torchtitan:
      return RecipeKind::fsdp2_compile;
  }
  return RecipeKind::megatron;
}

std::optional<Framework> files_of(RecipeKind recipe) {
  for (const auto& [framework, word] : Words<Framework>::table) {
    if (recipe_for(framework, recipe) == recipe) return framework;
  }
  return std::nullopt;
}

std::vector<Infeasible> why_inexpressible(Framework framework, const Subject& subject,
                                          const ClusterLimits& limits) {
  auto reasons = why_infeasible(subject.model, subject.plan, recipe_of(subject.recipe), limits);
  if (!reasons.empty() && reasons.front().rule == "positive_sizes") return reasons;
  for (const auto& table : limits_of(framework)) {
    for (const Limit& limit : table) {
      if (!holds_for(framework, limit) || !limit.broken(subject)) continue;
      reasons.push_back({limit.rule, limit.message(subject)});
    }
  }
  return reasons;
}

bool nearest_expressible(Framework framework, const Subject& subject, const ClusterLimits& limits,
                         ParallelPlan& nearest) {
  const ParallelPlan defaults =
      default_plan(subject.model, recipe_of(subject.recipe), subject.plan.world(),
                   subject.plan.global_batch_size, subject.plan.seq_len);
  // Those that change anything, each by itself: the others leave every set of them as it is.
  std::vector<const Change*> changes;
  for (const Change& change : kChanges) {
    ParallelPlan plan = subject.plan;
    change.apply(plan, defaults);
    if (plan != subject.plan) changes.push_back(&change);
  }
  const std::size_t count = changes.size();
  const auto works = [&](std::uint32_t set) {
    ParallelPlan plan = subject.plan;
    for (std::size_t i = 0; i < count; ++i) {
      if ((set >> i & 1U) != 0) changes[i]->apply(plan, defaults);
    }
    const Subject changed{subject.model, subject.config, plan, subject.recipe,
                          subject.gpus_per_node};
    if (!can_write(framework, changed, limits)) return false;
    nearest = plan;
    return true;
  };
  // Sets of one, then of two, ...: cheap ones first within a size.
  for (std::size_t size = 1; size <= count; ++size) {
    for (std::uint32_t set = (1U << size) - 1U; set < 1U << count;) {
      if (works(set)) return true;
      const std::uint32_t low = set & (0U - set), next = set + low;  // Gosper's next subset
      set = ((set ^ next) >> 2U) / low | next;
    }
  }
  return false;
}

std::vector<WrittenOption> written(std::span<const Option> options, const Subject& subject) {
  std::vector<WrittenOption> result;
  for (const Option& option : options) {
    Json value = option.write(subject);
    if (!value.is_null()) result.push_back({std::string(option.key), std::move(value)});
  }
  return result;
}

std::vector<WrittenOption> written(std::span<const Fact> facts, const Subject& subject) {
  std::vector<WrittenOption> result;
  for (const Fact& fact : facts) {
    Json value = fact.write(subject);
    if (!value.is_null()) result.push_back({std::string(fact.key), std::move(value)});
  }
  return result;
}

std::vector<EmittedFile> emit(Framework framework, const Subject& subject,
                              const std::vector<std::string>& remarks) {
  switch (framework) {
    case Framework::megatron:
      return write_megatron(subject, remarks);
    case Framework::megatron_bridge:
      return write_bridge(subject, remarks);
    case Framework::deepspeed:
      return write_deepspeed(subject, remarks);
    case Framework::megatron_deepspeed:
      return write_megatron_deepspeed(subject, remarks);
    case Framework::fsdp2:
      return write_fsdp2(subject, remarks);
    case Framework::torchtitan:
      return write_torchtitan(subject, remarks);
    case Framework::slime:
      return write_slime(subject, remarks);
  }
  return {};
}

}  // namespace qplan
