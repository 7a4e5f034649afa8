// What torchtune's recipes refuse of their own YAML.

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "planner/frameworks/finetuning/trap.h"

namespace qplan {
namespace {

using enum Severity;
using Case = FineTuningCase;

constexpr std::string_view kFull = "torchtune bd2a0fc7c, recipes/full_finetune_distributed.py";

// "o_proj", which torchtune calls output_proj.
bool has_unknown_module(const Case& c) {
  constexpr std::array<std::string_view, 4> kModules{"q_proj", "k_proj", "v_proj", "output_proj"};
  const std::vector<std::string> names =
      list_of(c.part.settings.find("model.lora_attn_modules")->value);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return std::find(kModules.begin(), kModules.end(), name) == kModules.end();
  });
}

constexpr auto kTraps = std::to_array<FineTuningTrap>({
    {"refused_value", error, "dtype",
     [](const Case& c) { return c.is("dtype", "fp16") || c.is("dtype", "float16"); },
     "torchtune's recipes refuse to train in fp16", "dtype: bf16, or fp32",
     "torchtune bd2a0fc7c, recipes/full_finetune_distributed.py:139"},
    {"options_exclude", error, "optimizer_in_bwd",
     [](const Case& c) { return c.on("optimizer_in_bwd") && c.figure("clip_grad_norm", 0) > 0; },
     "optimizer_in_bwd frees gradients before they could be clipped, and torchtune stops",
     "clip_grad_norm: null, or optimizer_in_bwd: False",
     "torchtune bd2a0fc7c, recipes/full_finetune_distributed.py:224"},
    {"options_exclude", error, "optimizer_in_bwd",
     [](const Case& c) {
       return c.on("optimizer_in_bwd") && c.figure("gradient_accumulation_steps", 1) > 1;
     },
     "optimizer_in_bwd steps within the backward pass and accumulates nothing, and torchtune stops",
     "gradient_accumulation_steps: 1, or optimizer_in_bwd: False",
     "torchtune bd2a0fc7c, recipes/full_finetune_distributed.py:229"},
    {"option_needs", error, "enable_activation_offloading",
     [](const Case& c) {
       return c.on("enable_activation_offloading") && !c.on("enable_activation_checkpointing");
     },
     "enable_activation_offloading needs enable_activation_checkpointing, and torchtune stops",
     "enable_activation_checkpointing: True",
     "torchtune bd2a0fc7c, recipes/full_finetune_distributed.py:261"},
    {"option_needs", error, "tensor_parallel_dim",
     [](const Case& c) {
       return c.figure("tensor_parallel_dim", 1) > 1 && !c.has("tensor_parallel_plan") &&
              !c.has("tensor_parallel_plan._component_");
     },
     "tensor_parallel_dim needs a tensor_parallel_plan, and torchtune stops",
     "tensor_parallel_plan: {_component_: torchtune.models.llama3.base_llama_tp_plan}, or that of "
     "the model",
     "torchtune bd2a0fc7c, recipes/full_finetune_distributed.py:159"},
    {"options_exclude", error, "enable_fp8_training",
     [](const Case& c) {
       return c.on("enable_fp8_training") && c.figure("context_parallel_dim", 1) > 1;
     },
     "torchtune has no context parallelism in fp8, and stops",
     "context_parallel_dim: 1, or enable_fp8_training: False",
     "torchtune bd2a0fc7c, recipes/full_finetune_distributed.py:624"},
    {"unknown_target", warning, "model.lora_attn_modules", has_unknown_module,
     "torchtune's layers of attention are q_proj, k_proj, v_proj and output_proj, and names that "
     "are none of them get no adapters",
     "lora_attn_modules: ['q_proj', 'k_proj', 'v_proj', 'output_proj'], or some of them",
     "torchtune bd2a0fc7c, torchtune/models/llama3/_component_builders.py"},
    {"no_effect", note, "custom_sharded_layers", [](const Case& c) { return !c.distributed(); },
     "custom_sharded_layers shards nothing on one GPU", "leave it out", kFull},
});

}  // namespace

std::span<const FineTuningTrap> torchtune_traps() {
  return kTraps;
}

}  // namespace qplan
