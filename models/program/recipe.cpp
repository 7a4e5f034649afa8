#include "models/program/recipe.h"

#include <array>

namespace qplan {
namespace {

constexpr EnumSet<OverlapKind> overlaps(bool tp, bool grad, bool param) {
  EnumSet<OverlapKind> set;
  if (tp) set.add(OverlapKind::tp);
  if (grad) set.add(OverlapKind::grad);
  if (param) set.add(OverlapKind::param);
  return set;
}

constexpr EnumSet<RecomputeModule> only_core_attn() {
  return EnumSet<RecomputeModule>{}.add(RecomputeModule::core_attn);
}

// Dropped gradients: torch's zero_grad(set_to_none=True), its default since 2.0, lets FSDP's shards
// go; Megatron-FSDP keeps main_grad_buffer and fills it with zeros (megatron-core 0.16.1,
// param_and_grad_buffer.py), as DeepSpeed does its partitions (assumed).
//
// Sources: frameworks.md (what each framework does), physics.md 5 (memory) and 6 (host). Host time
// of a launch: Megatron's Qwen3-30B step fell from 623 to 484 ms with CUDA graphs (physics.md 6);
// eager HF modules pay about 10 us an op in Python, Megatron about 7, a C++ loop about 3 (assumed).
constexpr std::array<Recipe, 10> kRecipes{{
    {.kind = RecipeKind::megatron,
     .description = "Megatron-Core with Transformer Engine (also Megatron-Bridge, NeMo, slime)",
     .dummy_weight_gradients = true,
     .default_overlap = overlaps(false, true, true),
     .selective = only_core_attn(),
     .launch = microseconds(6),
     .step_overhead = Seconds(0.005),
     .context = gib(1.5),
     .communicator = mib(120),
     .allocator_overhead = 0.03,
     .allocator_slack = gib(0.5)},
    {.kind = RecipeKind::megatron_legacy,
     .description = "Megatron-LM of 2021-22: unfused attention, dropout, fp16",
     .attention = AttentionKernel::unfused,
     .dropout = true,
     .logits_stash_bytes = 4,
     .selective = only_core_attn(),
     .launch = microseconds(6),
     .step_overhead = Seconds(0.01),
     .context = gib(1.5),
     .communicator = mib(120),
     .allocator_overhead = 0.05,
     .allocator_slack = gib(0.5)},
    {.kind = RecipeKind::megatron_deepspeed,
     .description = "Megatron-DeepSpeed: ZeRO stages, Ulysses, GELU and LayerNorm models",
     .attention = AttentionKernel::unfused,  // its default; --use-flash-attn-v2 is an option
                                             // (frameworks.md 3B)
     .dropout = true,
     .fp32_gradient_accumulation = false,
     .logits_stash_bytes = 4,
     .default_grad_dtype = DType::bf16,
     .reduce_dtype = DType::bf16,
     .selective = only_core_attn(),
     .launch = microseconds(8),
     .step_overhead = Seconds(0.01),
     .context = gib(1.5),
     .communicator = mib(120),
     .allocator_overhead = 0.05,
     .allocator_slack = gib(0.5)},
    {.kind = RecipeKind::megatron_fsdp,
     .description = "Megatron-FSDP: Megatron's kernels, fully sharded states",
     .dummy_weight_gradients = true,
     .shard_style = ShardStyle::fully_sharded,
     .default_overlap = overlaps(false, true, true),
     .selective = only_core_attn(),
     .launch = microseconds(7),
     .step_overhead = Seconds(0.005),
     .context = gib(1.5),
     .communicator = mib(120),
     .allocator_overhead = 0.03,
     .allocator_slack = gib(0.5)},
    {.kind = RecipeKind::deepspeed,
     .description = "DeepSpeed ZeRO-1/2/3 on Hugging Face modules",
     .fused_kernels = false,
     .fp32_gradient_accumulation = false,
     .logits_stash_bytes = 8,
     .logits_grad_bytes = 4,
     .bucket_elements = 500000000,
     .default_grad_dtype = DType::bf16,
     .reduce_dtype = DType::bf16,
     .default_overlap = overlaps(false, true, false),
     .launch = microseconds(10),
     .step_overhead = Seconds(0.02),
     .context = gib(1.6),
     .communicator = mib(120),
     .allocator_overhead = 0.08,
     .allocator_slack = gib(1)},
    {.kind = RecipeKind::fsdp1,
     .description = "PyTorch FSDP1 on Hugging Face style modules",
     .fused_kernels = false,
     .fused_adam = true,
     .fp32_gradient_accumulation = false,
     .logits_stash_bytes = 8,
     .logits_grad_bytes = 4,
     .shard_style = ShardStyle::fully_sharded,
     .working_params = DType::fp32,
     .reduce_dtype = DType::bf16,
     .drops_gradients = true,
     .default_overlap = overlaps(false, true, true),
     .launch = microseconds(10),
     .step_overhead = Seconds(0.01),
     .context = gib(1.6),
     .communicator = mib(120),
     .allocator_overhead = 0.1,
     .allocator_slack = gib(2)},
    {.kind = RecipeKind::fsdp2,
     .description = "PyTorch FSDP2 on Hugging Face modules, eager",
     .fused_kernels = false,
     .fp32_gradient_accumulation = false,
     .logits_stash_bytes = 8,
     .logits_grad_bytes = 4,
     .shard_style = ShardStyle::fully_sharded,
     .working_params = DType::fp32,
     .reduce_dtype = DType::fp32,
     .drops_gradients = true,
     .default_overlap = overlaps(false, true, true),
     .launch = microseconds(10),
     .step_overhead = Seconds(0.01),
     .context = gib(1.6),
     .communicator = mib(120),
     .allocator_overhead = 0.1,
     .allocator_slack = gib(2)},
    {.kind = RecipeKind::fsdp2_compile,
     .description = "PyTorch FSDP2 with torch.compile (torchtitan)",
     .fp32_gradient_accumulation = false,
     .logits_stash_bytes = 4,
     .logits_grad_bytes = 2,
     .shard_style = ShardStyle::fully_sharded,
     .working_params = DType::fp32,
     .reduce_dtype = DType::fp32,
     .drops_gradients = true,
     .default_overlap = overlaps(false, true, true),
     .selective =
         EnumSet<RecomputeModule>{}.add(RecomputeModule::layernorm).add(RecomputeModule::mlp),
     .launch = microseconds(5),
     .step_overhead = Seconds(0.005),
     .context = gib(1.6),
     .communicator = mib(120),
     .allocator_overhead = 0.08,
     .allocator_slack = gib(1)},
    {.kind = RecipeKind::nanotron,
     .description = "nanotron: TP with reduce-scatter, PP 1F1B, ZeRO-0/1",
     .fused_kernels = false,
     .logits_stash_bytes = 4,
     .selective = only_core_attn(),
     .launch = microseconds(10),
     .step_overhead = Seconds(0.01),
     .context = gib(1.6),
     .communicator = mib(120),
     .allocator_overhead = 0.05,
     .allocator_slack = gib(1)},
    {.kind = RecipeKind::qplan,
     .description = "qplan's own executor",
     .default_overlap = overlaps(false, true, true),
     .selective = only_core_attn(),
     .launch = microseconds(3),
     .moe_host_sync = false,
     .context = gib(0.6),
     .communicator = mib(120),
     .overlaps_p2p = true,
     .executable = true},
}};

}  // namespace

const Recipe& recipe_of(RecipeKind kind) {
  return kRecipes[static_cast<std::size_t>(kind)];
}

}  // namespace qplan
