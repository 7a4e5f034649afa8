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

// Whole reductions: distributed_data_parallel.py of megatron-core 0.16.1 gives ranks behind the
// first one bucket, and training.py later chunks (disable_bucketing).
//
// Dropped gradients: torch's zero_grad(set_to_none=True), its default since 2.0, lets FSDP's shards
// go; Megatron-FSDP keeps main_grad_buffer and fills it with zeros (megatron-core 0.16.1,
// param_and_grad_buffer.py), as DeepSpeed does its partitions (assumed).
//
// Sources: docs/reference/frameworks.md (what each framework does), docs/reference/physics.md 5
// (memory) and 6 (host).
// Host time is of one op of ours, the framework's Python and all its small kernels included, read
// off runs that more tokens do not slow:
//   eager Hugging Face: 2.3 ms for the 128 kernels of a layer, forward and backward (H200, torch
//     2.11; docs/evidence/archive/issue3-h200.json);
//   Megatron of 2021-22: 3.5 ms a layer of 42 ops, whatever the width and tp: traces of one
//     layer on an A100, under CUPTI, of which vTrain's simulator makes its single-node steps
//     (docs/evidence/archive/issue3-seventh-round-ranking.md); no run that was timed says it;
//   Megatron-Core: its own layers of 128 tokens on an H100 (megatron-core 0.16.1, Transformer
//     Engine 2.12; docs/evidence/archive/issue3-fourteenth-round.md). A dense layer's 23 ops
//     take 3.5 ms, one with 8 experts' 37 take 7.5; 0.13 ms a layer for each expert more are 6
//     products, in fp8 by tensorwise current scaling 0.31, with 4 operands that become fp8, by
//     blocks 0.23. Dense layers in fp8, of 8 operands, take 0.33 ms longer under delayed scaling,
//     0.77 by tensorwise;
//   nanotron: 4.5 ms a layer, 10 collectives behind Python autograd functions and some 60 kernels
//     of eager RoPE, SwiGLU and gradient hooks (Ultra-Scale runs on tp 2-8, one node, micro-batch
//     1);
//   a C++ loop: 3 us (assumed).
constexpr std::array<Recipe, 10> kRecipes{{
    {.kind = RecipeKind::megatron,
     .description = "Megatron-Core with Transformer Engine (also Megatron-Bridge, NeMo, slime)",
     .fused_rope_magnitude = false,
     .loss = LossKind::native,
     .dummy_weight_gradients = true,
     .whole_reductions = true,
     .expands_key_heads = true,
     .fp8_parameters = true,
     .current_scaling = true,
     .default_overlap = overlaps(false, true, true),
     .norms_in_linears = true,
     .selective = only_core_attn(),
     .launch = microseconds(150),
     .collective_launch = microseconds(60),
     .further_launch = microseconds(20),
     .cast_launch = microseconds(50),
     .one_product_per_expert = true,
     .expert_launch = microseconds(20),
     .expert_cast = microseconds(25),
     .expert_scale = microseconds(20),
     .step_overhead = Seconds(0.005),
     .context = gib(1.5),
     .communicator = mib(120),
     .allocator_overhead = 0.03,
     .allocator_slack = gib(0.5),
     .synchronous_p2p = true,
     .model_error = 0.04,
     // The intervals of 85 measured dropless runs then cover 82% of them, of 24 that drop 79%.
     .expert_error = 0.03,
     .dropping_error = 0.25,
     .can = {.schedules = set_of(ScheduleKind::one_f_one_b, ScheduleKind::interleaved),
             .precisions = set_of(Precision::bf16, Precision::fp16, Precision::fp8,
                                  Precision::mxfp8, Precision::nvfp4),
             .losses = set_of(LossKind::native, LossKind::unfused, LossKind::te),
             .takes_layout = true,  // --pipeline-model-parallel-layout
             .offload = StateOffload::optimizer,
             .sequence_split = SequenceSplit::unasked,  // Megatron's recipes turn it on with tp
             .recompute = set_of(RecomputeChoice::blocks, RecomputeChoice::modules),
             .dispatchers = set_of(MoeDispatcher::alltoall, MoeDispatcher::deepep)}},
    {.kind = RecipeKind::megatron_legacy,
     .description = "Megatron-LM of 2021-22: unfused attention, dropout, fp16",
     .attention = AttentionKernel::unfused,
     .dropout = true,
     .loss = LossKind::unfused,
     .selective = only_core_attn(),
     .launch = microseconds(80),
     .collective_launch = microseconds(100),
     .step_overhead = Seconds(0.01),
     .context = gib(1.5),
     .communicator = mib(120),
     .allocator_overhead = 0.05,
     .allocator_slack = gib(0.5),
     .synchronous_p2p = true,
     .scatters_boundary = true,
     .model_error = 0.1,
     .default_zero = 0,
     .can = {.schedules = set_of(ScheduleKind::one_f_one_b, ScheduleKind::interleaved),
             .precisions = set_of(Precision::bf16, Precision::fp16),
             .losses = set_of(LossKind::unfused),
             .zero = {0, 0},  // it has nothing else
             .recompute = set_of(RecomputeChoice::blocks)}},
    {.kind = RecipeKind::megatron_deepspeed,
     .description = "Megatron-DeepSpeed: ZeRO stages, Ulysses, GELU and LayerNorm models",
     .attention = AttentionKernel::unfused,  // its default; --use-flash-attn-v2 is an option
                                             // (docs/reference/frameworks.md 3B)
     .dropout = true,
     .loss = LossKind::unfused,
     .fp32_gradient_accumulation = false,
     .widens_gradients = true,
     .waits_for_input_gradients = true,
     .default_grad_dtype = DType::bf16,
     .reduce_dtype = DType::bf16,
     .selective = only_core_attn(),
     .launch = microseconds(80),
     .collective_launch = microseconds(20),
     .step_overhead = Seconds(0.01),
     .context = gib(1.5),
     .communicator = mib(120),
     // What nvidia-smi showed on 35 runs of BLOOM's in fp16 (bigscience, chronicles-prequel.md),
     // MiB without their last three digits, is 0.14 to 0.23 more than what is allocated, context
     // and NCCL put aside: 0.19 in the median.
     .allocator_overhead = 0.19,
     .allocator_slack = gib(0.5),
     .synchronous_p2p = true,
     .scatters_boundary = true,
     // What holds three of four of its 111 runs: half are BLOOM's, 14% slower than predicted in the
     // median, whose machine's page names a third of the links that its GPUs have.
     .model_error = 0.16,
     .can = {.schedules = set_of(ScheduleKind::one_f_one_b, ScheduleKind::interleaved),
             .precisions = set_of(Precision::bf16, Precision::fp16, Precision::fp8),
             .losses = set_of(LossKind::unfused),
             .zero = {1, 3},
             .offload = StateOffload::optimizer,
             .cp_exchanges = set_of(CpComm::a2a),  // Ulysses
             // Its set is core_attn, and its one word for it has no modules.
             .recompute = set_of(RecomputeChoice::unnamed)}},
    {.kind = RecipeKind::megatron_fsdp,
     .description = "Megatron-FSDP: Megatron's kernels, fully sharded states",
     .fused_rope_magnitude = false,
     .loss = LossKind::native,
     .dummy_weight_gradients = true,
     .shard_style = ShardStyle::fully_sharded,
     .expands_key_heads = true,
     .current_scaling = true,
     .default_overlap = overlaps(false, true, true),
     .norms_in_linears = true,
     .selective = only_core_attn(),
     .launch = microseconds(150),
     .collective_launch = microseconds(60),
     .further_launch = microseconds(20),
     .cast_launch = microseconds(50),
     .one_product_per_expert = true,
     .expert_launch = microseconds(20),
     .expert_cast = microseconds(25),
     .expert_scale = microseconds(20),
     .step_overhead = Seconds(0.005),
     .context = gib(1.5),
     .communicator = mib(120),
     .allocator_overhead = 0.03,
     .allocator_slack = gib(0.5),
     .synchronous_p2p = true,
     .model_error = 0.1,
     .default_zero = 3,
     .can = {.schedules = set_of(ScheduleKind::one_f_one_b, ScheduleKind::interleaved),
             .precisions = set_of(Precision::bf16, Precision::fp16, Precision::fp8,
                                  Precision::mxfp8, Precision::nvfp4),
             .losses = set_of(LossKind::native, LossKind::unfused, LossKind::te),
             .takes_layout = true,
             .zero = {2, 3},
             .sequence_split = SequenceSplit::unasked,
             .recompute = set_of(RecomputeChoice::blocks, RecomputeChoice::modules),
             .dispatchers = set_of(MoeDispatcher::alltoall, MoeDispatcher::deepep)}},
    {.kind = RecipeKind::deepspeed,
     .description = "DeepSpeed ZeRO-1/2/3 on Hugging Face modules",
     .fused_kernels = false,
     .fused_norms = false,
     .loss = LossKind::eager,
     .fp32_gradient_accumulation = false,
     .widens_gradients = true,
     .keeps_eager_copies = true,
     .bucket_elements = 500000000,
     .default_grad_dtype = DType::bf16,
     .reduce_dtype = DType::bf16,
     .separate_projections = true,
     .fused_scan_output = true,
     .default_overlap = overlaps(false, true, false),
     .launch = microseconds(15),
     .collective_launch = microseconds(50),
     .step_overhead = Seconds(0.02),
     .context = gib(1.6),
     .communicator = mib(120),
     .allocator_overhead = 0.08,
     .allocator_slack = gib(1),
     .model_error = 0.2,
     .can = {.precisions = set_of(Precision::bf16, Precision::fp16),
             .losses = set_of(LossKind::eager),
             .pipeline = false,  // DeepSpeed's needs a PipelineModule
             .zero = {1, 3},
             .offload = StateOffload::optimizer,
             .sequence_split = SequenceSplit::none,
             .cp_exchanges = set_of(CpComm::a2a)}},
    {.kind = RecipeKind::fsdp1,
     .description = "PyTorch FSDP1 on Hugging Face style modules",
     .fused_kernels = false,
     .fused_norms = false,
     .attention = AttentionKernel::flash1,  // of its days, 2022-23 (MPT's Triton kernel is one)
     .fused_adam = false,  // torch's default (foreach); Composer's DecoupledAdamW is as many passes
     .fp32_gradient_accumulation = false,
     .keeps_eager_copies = true,
     .shard_style = ShardStyle::fully_sharded,
     .working_params = DType::fp32,
     .default_grad_dtype = DType::bf16,  // torch reduces what it gathers unless told otherwise
     .reduce_dtype = DType::fp32,
     .separate_projections = true,
     .fused_scan_output = true,
     .flat_parameters = true,
     .drops_gradients = true,
     .default_overlap = overlaps(false, true, true),
     .recomputes_dead_ops = false,
     .launch = microseconds(15),
     .collective_launch = microseconds(60),
     .step_overhead = Seconds(0.01),
     .context = gib(1.6),
     .communicator = mib(120),
     .allocator_overhead = 0.1,
     .allocator_slack = gib(2),
     .model_error = 0.045,
     .default_zero = 3,
     .can = {.precisions = set_of(Precision::bf16, Precision::fp16, Precision::fp8),
             .losses = set_of(LossKind::fused),
             .pipeline = false,
             .zero = {2, 3},
             .offload = StateOffload::whole,
             .sequence_split = SequenceSplit::none}},
    {.kind = RecipeKind::fsdp2,
     .description = "PyTorch FSDP2 on Hugging Face modules, eager",
     .fused_kernels = false,
     .fused_norms = false,
     .loss = LossKind::eager,
     .separate_casts = true,
     .fp32_gradient_accumulation = false,
     .keeps_eager_copies = true,
     .shard_style = ShardStyle::fully_sharded,
     .working_params = DType::fp32,
     .reduce_dtype = DType::fp32,
     .copies_gathered = true,
     .copies_sequence_parts = true,
     .separate_projections = true,
     .fused_scan_output = true,
     .drops_gradients = true,
     .default_overlap = overlaps(false, true, true),
     .recomputes_dead_ops = false,
     .recomputes_operators = true,
     .launch = microseconds(15),
     .collective_launch = microseconds(50),
     .step_overhead = Seconds(0.01),
     .context = gib(1.6),
     .communicator = mib(120),
     .allocator_overhead = 0.1,
     .allocator_slack = gib(2),
     .model_error = 0.14,  // nine runs, the worst 17% off
     .default_zero = 3,
     .can = {.precisions = set_of(Precision::bf16, Precision::fp16, Precision::fp8),
             .losses = set_of(LossKind::eager),
             .pipeline = false,
             .zero = {2, 3},
             .offload = StateOffload::whole,
             .sequence_split = SequenceSplit::none,
             // accelerate's FSDP has no all-to-all.
             .cp_exchanges = set_of(CpComm::p2p, CpComm::all_gather),
             .joins_sharding_ranks = true}},
    {.kind = RecipeKind::fsdp2_compile,
     .description = "PyTorch FSDP2 with torch.compile (torchtitan)",
     .attention = AttentionKernel::flex,
     .loss = LossKind::chunked,
     .separate_casts = true,
     .fp32_gradient_accumulation = false,
     .shard_style = ShardStyle::fully_sharded,
     .working_params = DType::fp32,
     .reduce_dtype = DType::fp32,
     .copies_gathered = true,
     .copies_sequence_parts = true,
     .separate_projections = true,
     .fused_qkv = true,
     .gathers_once_in_pipeline = true,
     .drops_gradients = true,
     .default_overlap = overlaps(false, true, true),
     .recomputes_dead_ops = false,
     .recomputes_operators = true,
     .launch = microseconds(10),
     .collective_launch = microseconds(50),
     .step_overhead = Seconds(0.005),
     .context = gib(1.6),
     .communicator = mib(120),
     // Eight runs of torchtitan's (benchmarks, 2024-12) reserved 1.07 to 1.37 times what is
     // allocated by ours, 1 GiB aside; 1.15 in the median.
     .allocator_overhead = 0.15,
     .allocator_slack = gib(1),
     .model_error = 0.15,
     .default_zero = 3,
     .compiles = true,
     .can = {.schedules = set_of(ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                                 ScheduleKind::interleaved, ScheduleKind::zbv),
             .precisions = set_of(Precision::bf16, Precision::fp16, Precision::fp8,
                                  Precision::mxfp8, Precision::nvfp4),
             .losses = set_of(LossKind::chunked, LossKind::compiled),
             .takes_layout = true,  // module_fqns_per_model_part
             .zero = {2, 3},
             .offload = StateOffload::whole,
             .sequence_split =
                 SequenceSplit::unasked,  // enable_sequence_parallel is true by default
             .cp_exchanges = set_of(CpComm::all_gather),
             .recompute = set_of(RecomputeChoice::unnamed)}},
    {.kind = RecipeKind::nanotron,
     .description = "nanotron: TP with reduce-scatter, PP 1F1B, ZeRO-0/1",
     .fused_kernels = false,  // modeling_llama.py: RoPE and SwiGLU in eager mode, norms in Triton
     .attention = AttentionKernel::flash2,
     .loss = LossKind::unfused,
     .fused_gradient_accumulation = false,  // FP32GradientAccumulator adds in a hook
     .keeps_eager_copies = true,
     .reduction_bucket = mib(25),  // DDP's, of bf16 gradients (ddp_bucket_cap_mb)
     .gathers_at_once = true,      // all_gather_coalesced, nanotron's zero.py
     .selective = only_core_attn(),
     .launch = microseconds(30),
     .collective_launch = microseconds(250),
     .pipelined_collective_step = microseconds(250),
     .crossing_collective_step = microseconds(40),
     .stalled_message = Seconds(0.28),
     .step_overhead = Seconds(0.01),
     .context = gib(1.6),
     .communicator = mib(120),
     .allocator_overhead = 0.05,
     .allocator_slack = gib(1),
     .synchronous_p2p = true,
     .model_error = 0.14,
     .can = {.schedules = set_of(ScheduleKind::gpipe, ScheduleKind::one_f_one_b),
             .precisions = set_of(Precision::bf16, Precision::fp16),
             .losses = set_of(LossKind::unfused),
             .placement = LayerPlacement::by_cost,
             // Its tp mode is reduce-scatter by default.
             .sequence_split = SequenceSplit::unasked}},
    {.kind = RecipeKind::qplan,
     .description = "qplan's own executor",
     .default_overlap = overlaps(false, true, true),
     .recomputes_dead_ops = false,
     .selective = only_core_attn(),
     .launch = microseconds(3),
     .collective_launch = microseconds(5),
     .moe_host_sync = false,
     .context = gib(0.63),
     .overlaps_p2p = true,
     .model_error = 0.1,
     .executable = true,
     .can = {.schedules =
                 set_of(ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
                        ScheduleKind::zb_h1, ScheduleKind::zbv, ScheduleKind::dualpipe),
             .precisions = set_of(Precision::bf16, Precision::fp8, Precision::fp32),
             .losses = set_of(LossKind::fused),
             .takes_layout = true,
             .zero = {1, 3},
             .offload = StateOffload::optimizer,
             .sequence_split = SequenceSplit::unasked,
             .recompute = set_of(RecomputeChoice::blocks, RecomputeChoice::modules)}},
}};

}  // namespace

const Recipe& recipe_of(RecipeKind kind) {
  return kRecipes[static_cast<std::size_t>(kind)];
}

Recipe recipe_of_month(RecipeKind kind, int month) {
  // The first whole months with what they name.
  constexpr int kEarlyStop = 202310, kCompiledLoss = 202504, kChunkedLoss = 202605, kFlex = 202607;
  constexpr int kMegatronFusedLoss = 202407, kTeLossInFp32 = 202609, kCurrentScaling = 202509;
  Recipe recipe = recipe_of(kind);
  if (month == 0) return recipe;
  if (kind == RecipeKind::fsdp1) recipe.recomputes_dead_ops = month < kEarlyStop;
  if (recipe.loss == LossKind::native) {
    if (month < kMegatronFusedLoss) recipe.loss = LossKind::unfused;
    recipe.te_loss_in_place = month < kTeLossInFp32;
  }
  if (month < kCurrentScaling) recipe.current_scaling = false;
  if (kind != RecipeKind::fsdp2_compile) return recipe;
  if (month < kFlex) recipe.attention = AttentionKernel::flash2;
  if (month < kChunkedLoss) {
    recipe.fused_qkv = false;
    recipe.loss = month < kCompiledLoss ? LossKind::eager : LossKind::compiled;
  }
  return recipe;
}

}  // namespace qplan
