#include "planner/frameworks/rl/written_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "planner/frameworks/writers.h"
#include "planner/rl/rl_search.h"

namespace qplan {
namespace {

// An engine whose words no file has.
bool has_other_engine(const RolloutLayout& layout) {
  const bool spread = layout.ep == layout.tp * layout.dp;
  return (layout.ep > 1 && !spread) || (layout.dp > 1 && !spread);
}

constexpr auto kStepLimits = std::to_array<Limit>({
    {"rl_algorithm", [](const Subject& s) { return s.step != nullptr && !s.step->job.generates(); },
     [](const Subject& s) {
       return fmt::format(
           "qplan writes steps of grpo and ppo for it, not of {}; use trl, or megatron-bridge",
           to_word(s.step->job.algorithm));
     }},
    {"rl_engine",
     [](const Subject& s) { return s.step != nullptr && has_other_engine(s.step->layout); },
     [](const Subject& s) {
       const RolloutLayout& layout = s.step->layout;
       return fmt::format("experts of an engine are spread over its tp x dp = {} ranks, not {}",
                          layout.tp * layout.dp, layout.ep);
     }},
});

constexpr auto kLimits = std::to_array<Limit>({
    {"rl_precision", [](const Subject& s) { return s.plan.precision != Precision::bf16; },
     [](const Subject& s) {
       return fmt::format("qplan writes steps of reinforcement learning for bf16, not {}",
                          to_word(s.plan.precision));
     }},
    {"rl_hybrid_stages", splits_hybrid,
     [](const Subject&) {
       return std::string(
           "stages of a model with Mamba-2 layers are said by a pattern, which has no key here; "
           "use "
           "vpp 1 without pipeline_layout");
     }},
    {"rl_loss", [](const Subject& s) { return s.plan.loss != LossKind::by_framework; },
     [](const Subject&) {
       return std::string("the loss is one of the framework's own over logits; leave loss out");
     }},
    {"rl_dropout", [](const Subject& s) { return s.plan.dropout; },
     [](const Subject&) {
       return std::string("jobs are written without dropout; leave dropout out");
     }},
    {"rl_module_kernels",
     [](const Subject& s) { return s.plan.module_kernels != ModuleKernels::eager; },
     [](const Subject&) {
       return std::string(
           "jobs are written with the modules as transformers has them; leave module_kernels out");
     }},
    {"rl_optimizer",
     [](const Subject& s) { return by_shards(s) && s.plan.optimizer != OptimizerKind::adam; },
     [](const Subject&) {
       return std::string("FSDP's jobs are written with torch's AdamW; use optimizer=adam");
     }},
    {"rl_compile", [](const Subject& s) { return s.plan.compile; },
     [](const Subject&) {
       return std::string("the trainer's modules are not compiled; leave compile out");
     }},
    {"rl_offload",
     [](const Subject& s) {
       const Offload& o = s.plan.offload;
       const bool whole = o.params ? o.optimizer == 1 : o.optimizer == 0;
       return by_shards(s) && (!whole || o.activation_layers != 0 || o.nvme);
     },
     [](const Subject&) {
       return std::string(
           "FSDP offloads weights and optimizer during a step or neither; leave offload out");
     }},
    {"rl_overlap",
     [](const Subject& s) {
       return by_shards(s) && s.plan.overlap != recipe_of(s.recipe).defaults.overlap;
     },
     [](const Subject&) {
       return std::string(
           "FSDP2 always prefetches and reduces behind compute; use overlap=grad,param");
     }},
});

}  // namespace

std::span<const Limit> step_limits() {
  return kStepLimits;
}

bool holds_weights(const CostModel& cost, const RolloutLayout& engine) {
  return RolloutModel(cost.model(), cost.hardware(), engine, cost.facts()).cache_room().value() > 0;
}

RolloutLayout written_engine(const Subject& s, double memory_share) {
  RolloutLayout layout;
  layout.memory_share = memory_share;
  layout.tp = static_cast<int>(nodes_of(s).gpus);
  while (s.model.num_attention_heads % layout.tp != 0 || s.plan.world() % layout.tp != 0) {
    --layout.tp;
  }
  if (s.cost == nullptr || holds_weights(*s.cost, layout)) return layout;
  for (const RolloutLayout& larger : rollout_layouts(s.model, s.plan.world(), layout)) {
    const bool split = larger.dp == 1 && larger.ep == 1 && larger.tp > layout.tp;
    if (split && holds_weights(*s.cost, larger)) return larger;
  }
  return layout;
}

WrittenStep job_to_write(const Subject& s) {
  if (s.step != nullptr) return {*s.step, s.step->job.packed};
  WrittenStep written;
  written.packs = false;
  RlJob& job = written.step.job;
  std::int64_t samples = 8;
  while (s.plan.global_batch_size % samples != 0) samples /= 2;
  job.samples = samples;
  job.prompts = s.plan.global_batch_size / samples;
  job.train_batch = s.plan.global_batch_size;
  job.prompt_len = s.plan.seq_len / 4;
  job.response.max = s.plan.seq_len - job.prompt_len;
  job.response.mean = static_cast<double>(job.response.max) / 2;
  return written;
}

WrittenStep step_to_write(const Subject& s) {
  WrittenStep written = job_to_write(s);
  if (s.step == nullptr) written.step.layout = written_engine(s, 0.6);
  return written;
}

std::string hydra_text(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (!value.is_array()) return text_of(value);
  std::string text;
  for (const Json& item : value) text += (text.empty() ? "" : ",") + hydra_text(item);
  return "[" + text + "]";
}

std::string quoted_override(const std::string& word) {
  if (word.find('$') != std::string::npos) return '"' + word + '"';
  const bool plain = word.find_first_of(" []{}()*'") == std::string::npos;
  return plain ? word : "'" + word + "'";
}

std::span<const Limit> rl_limits() {
  return kLimits;
}

bool has_rl_states(const Subject& s) {
  const ParallelPlan& p = s.plan;
  if (s.recipe == RecipeKind::fsdp2) {
    const DType all = p.main_params_dtype;
    return (all != DType::fp32 && all != DType::bf16) || p.moment_dtype != all ||
           p.grad_dtype != all;
  }
  // Megatron's precision-aware optimizer keeps a remainder of 16-bit master weights.
  return p.moment_dtype != DType::fp32 || p.main_params_dtype == DType::fp16 ||
         (p.offload.optimizer > 0 && p.main_params_dtype != DType::fp32) ||
         p.grad_dtype == DType::fp16 || p.main_params_dtype == DType::fp8;
}

std::string rl_states_message(const Subject&, std::string_view framework) {
  return fmt::format(
      "{} keeps master weights, moments and gradients in fp32, or all in bf16 under FSDP; use "
      "main_params_dtype, moment_dtype and grad_dtype fp32",
      framework);
}

}  // namespace qplan
