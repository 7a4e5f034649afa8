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
//     (docs/evidence/archive/issue3-seventh-round-ranking.md); no run that was timed says it. A DGX
//     A100's processors take 1.3 times an H100's (profile a100-80gb-sxm): 2.7 ms there;
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
constexpr EnumSet<Precision> kAllButFp32 =
    set_of(Precision::bf16, Precision::fp16, Precision::fp8, Precision::mxfp8, Precision::nvfp4);

// What each framework has of optimizers: --optimizer of Megatron-LM d98e8a64
// (megatron/training/arguments.py:2913; Megatron-FSDP two of them, :1150) and of Megatron-DeepSpeed
// 4efb479d (megatron/arguments.py:940); DeepSpeed edaa7221, deepspeed/runtime/engine.py:2079;
// nanotron 2411b022, src/nanotron/config/config.py:391; a Trainer's --optim, whose Adafactor
// wants whole matrices and so no shards.
constexpr auto kAdamAndSgd = set_of(OptimizerKind::adam, OptimizerKind::sgd);
constexpr auto kElementwise =
    set_of(OptimizerKind::adam, OptimizerKind::adam8bit, OptimizerKind::sgd, OptimizerKind::lion);

constexpr Recipe kMegatron{
    .kind = RecipeKind::megatron,
    .description = "Megatron-Core with Transformer Engine (also Megatron-Bridge, NeMo, slime)",
    .kernels = {.fused_rope_magnitude = false,
                .loss = LossKind::native,
                .current_scaling = true,
                .norms_in_linears = true,
                .expands_key_heads = true,
                .one_product_per_expert = true,
                .parallel_adapters = true,
                .orthogonalizes_layers = true},
    .keeps = {.dummy_weight_gradients = true, .selective = only_core_attn()},
    .states = {.whole_reductions = true, .fp8_parameters = true},
    .host = {.launch = microseconds(150),
             .collective_launch = microseconds(60),
             .further_launch = microseconds(20),
             .cast_launch = microseconds(50),
             .expert = {.product = microseconds(20),
                        .cast = microseconds(25),
                        .scale = microseconds(20)},
             .step_overhead = Seconds(0.005),
             .synchronous_p2p = true},
    .memory = {.context = gib(1.5),
               .communicator = mib(120),
               .allocator_overhead = 0.03,
               .allocator_slack = gib(0.5),
               .product_workspaces = true},
    // The intervals of 275 measured runs then cover 85% of them, of dropless experts' 89%.
    .errors = {.model = 0.035, .expert = 0.02, .dropping = 0.25},
    .defaults = {.overlap = overlaps(false, true, true)},
    .can = {.schedules = set_of(ScheduleKind::one_f_one_b, ScheduleKind::interleaved),
            .precisions = kAllButFp32,
            .optimizers = kAdamAndSgd | set_of(OptimizerKind::muon),
            .losses = set_of(LossKind::native, LossKind::unfused, LossKind::te),
            .takes_layout = true,  // --pipeline-model-parallel-layout
            .offload = StateOffload::optimizer,
            .sequence_split = SequenceSplit::unasked,  // Megatron's recipes turn it on with tp
            .recompute = set_of(RecomputeChoice::blocks, RecomputeChoice::modules),
            .dispatchers = set_of(MoeDispatcher::alltoall, MoeDispatcher::deepep)}};

constexpr Recipe megatron_fsdp() {
  Recipe r = kMegatron;
  r.kind = RecipeKind::megatron_fsdp;
  r.description = "Megatron-FSDP: Megatron's kernels, fully sharded states";
  r.states.shard_style = ShardStyle::fully_sharded;
  r.states.whole_reductions = false;
  r.states.fp8_parameters = false;
  r.errors = {.model = 0.1};
  r.defaults.zero = 3;
  r.can.optimizers = kAdamAndSgd;
  r.can.zero = {2, 3};
  return r;
}

constexpr Recipe kMegatronLegacy{
    .kind = RecipeKind::megatron_legacy,
    .description = "Megatron-LM of 2021-22: unfused attention, dropout, fp16",
    .kernels = {.attention = AttentionKernel::unfused, .dropout = true, .loss = LossKind::unfused},
    .keeps = {.selective = only_core_attn()},
    .host = {.launch = microseconds(62),
             .collective_launch = microseconds(77),
             .step_overhead = Seconds(0.01),
             .synchronous_p2p = true,
             .scatters_boundary = true},
    .memory = {.context = gib(1.5),
               .communicator = mib(120),
               .allocator_overhead = 0.05,
               .allocator_slack = gib(0.5)},
    .errors = {.model = 0.1},
    .defaults = {.zero = 0},
    .can = {.schedules = set_of(ScheduleKind::one_f_one_b, ScheduleKind::interleaved),
            .precisions = set_of(Precision::bf16, Precision::fp16),
            .optimizers = kAdamAndSgd,
            .losses = set_of(LossKind::unfused),
            .zero = {0, 0},  // it has nothing else
            .recompute = set_of(RecomputeChoice::blocks)}};

// Its attention is unfused by default; --use-flash-attn-v2 is an option
// (docs/reference/frameworks.md 3B).
constexpr Recipe megatron_deepspeed() {
  Recipe r = kMegatronLegacy;
  r.kind = RecipeKind::megatron_deepspeed;
  r.description = "Megatron-DeepSpeed: ZeRO stages, Ulysses, GELU and LayerNorm models";
  r.kernels.waits_for_input_gradients = true;
  r.states.reduce_dtype = DType::bf16;
  r.states.fp32_accumulation = false;
  r.states.widens_gradients = true;
  r.host.collective_launch = microseconds(15);
  // What nvidia-smi showed on 35 runs of BLOOM's in fp16 (bigscience, chronicles-prequel.md), MiB
  // without their last three digits, is 0.14 to 0.23 more than what is allocated, context and NCCL
  // put aside: 0.19 in the median.
  r.memory.allocator_overhead = 0.19;
  r.errors.model = 0.07;  // holds four of five of its 111 runs, of two sources
  r.defaults.grad_dtype = DType::bf16;
  r.defaults.zero = 1;
  r.can.precisions.add(Precision::fp8);
  r.can.zero = {1, 3};
  r.can.offload = StateOffload::optimizer;
  r.can.cp_exchanges = set_of(CpComm::a2a);  // Ulysses
  // Its set is core_attn, and its one word for it has no modules.
  r.can.recompute = set_of(RecomputeChoice::unnamed);
  return r;
}

// Checkpoints without reentrance pack and unpack every tensor that they save in Python.
constexpr Seconds kModulesCheckpoint = microseconds(1400);

constexpr Recipe kDeepSpeedModules{
    .kind = RecipeKind::deepspeed,
    .description = "DeepSpeed ZeRO-1/2/3 on Hugging Face modules",
    .kernels = {.fused = false,
                .fused_norms = false,
                .loss = LossKind::eager,
                .separate_projections = true,
                .fused_scan_output = true},
    .keeps = {.eager_copies = true, .recomputes_dead_ops = false, .keeps_fp32_logits = false},
    .states = {.reduce_dtype = DType::bf16,
               .fp32_accumulation = false,
               .widens_gradients = true,
               .drops_gradients = true,
               .bucket_elements = 500000000,
               .flattens_gradients = true},
    .host = {.launch = microseconds(15),
             .collective_launch = microseconds(50),
             .checkpoint = kModulesCheckpoint,
             .gradient_hook = microseconds(130),
             .module_hook = microseconds(250),
             .dequantize_launch = microseconds(75),
             .step_overhead = Seconds(0.02)},
    .memory = {.context = gib(1.6),
               .communicator = mib(120),
               .allocator_overhead = 0.08,
               .allocator_slack = gib(1)},
    .errors = {.model = 0.2},
    .defaults = {.overlap = overlaps(false, true, false), .grad_dtype = DType::bf16},
    .can = {.precisions = set_of(Precision::bf16, Precision::fp16),
            .optimizers = kElementwise | set_of(OptimizerKind::muon),
            // The loss is the model's, whoever shards it. narrow, compiled: of programs whose
            // models hand on 16-bit logits.
            .losses = set_of(LossKind::eager, LossKind::narrow, LossKind::fused, LossKind::compiled,
                             LossKind::liger),
            .pipeline = false,  // DeepSpeed's needs a PipelineModule
            .zero = {1, 3},
            .offload = StateOffload::optimizer,
            .sequence_split = SequenceSplit::none,
            .cp_exchanges = set_of(CpComm::a2a)}};

// torch's DistributedDataParallel around Hugging Face's modules, or one GPU: what a Trainer, TRL
// and PEFT do where nobody tells them to shard.
constexpr Recipe ddp() {
  Recipe r = kDeepSpeedModules;
  r.kind = RecipeKind::ddp;
  // 60 runs of fine-tuning, four of five within 9% (tests/data/runs/finetuning.csv), all of one
  // source; sources differ by half as much again.
  r.errors.model = 0.1;
  r.description = "PyTorch DDP, or one GPU, on Hugging Face modules";
  r.states.widens_gradients = false;
  r.states.updates_working_weights = true;
  r.states.drops_gradients = true;
  r.states.bucket_elements = 0;
  r.states.flattens_gradients = false;
  r.host.gradient_hook = r.host.module_hook = Seconds(0);
  // torch/nn/parallel/distributed.py: bucket_cap_mb 25, gradient_as_bucket_view off.
  r.states.buckets = ReductionBuckets{.size = mib(25)};
  r.host.step_overhead = Seconds(0.01);
  r.defaults = {.overlap = overlaps(false, true, false), .grad_dtype = DType::bf16, .zero = 0};
  r.can.optimizers = kElementwise | set_of(OptimizerKind::adafactor, OptimizerKind::muon);
  r.can.zero = {0, 0};
  r.can.offload = StateOffload::none;
  r.can.sequence_split = SequenceSplit::none;
  return r;
}

constexpr Recipe kFsdp2{
    .kind = RecipeKind::fsdp2,
    .description = "PyTorch FSDP2 on Hugging Face modules, eager",
    .kernels = {.fused = false,
                .fused_norms = false,
                .loss = LossKind::eager,
                .separate_casts = true,
                .separate_projections = true,
                .fused_scan_output = true,
                .copies_sequence_parts = true},
    .keeps = {.eager_copies = true,
              .recomputes_operators = true,
              .recomputes_dead_ops = false,
              .keeps_fp32_logits = false},
    .states = {.shard_style = ShardStyle::fully_sharded,
               .working_params = DType::fp32,
               .fp32_accumulation = false,
               .drops_gradients = true,
               .copies_gathered = true},
    .host = {.launch = microseconds(15),
             .collective_launch = microseconds(600),
             .checkpoint = kModulesCheckpoint,
             .dequantize_launch = microseconds(75),
             .step_overhead = Seconds(0.01)},
    .memory = {.context = gib(1.6),
               .communicator = mib(120),
               .allocator_overhead = 0.1,
               .allocator_slack = gib(2)},
    .errors = {.model = 0.14},  // nine runs, the worst 17% off
    .defaults = {.overlap = overlaps(false, true, true), .zero = 3},
    .can = {.precisions = set_of(Precision::bf16, Precision::fp16, Precision::fp8),
            .optimizers = kElementwise,
            .losses = set_of(LossKind::eager, LossKind::narrow, LossKind::fused, LossKind::compiled,
                             LossKind::liger),
            .pipeline = false,
            .zero = {2, 3},
            .offload = StateOffload::whole,
            .sequence_split = SequenceSplit::none,
            // accelerate's FSDP has no all-to-all.
            .cp_exchanges = set_of(CpComm::p2p, CpComm::all_gather)}};

constexpr Recipe fsdp1() {
  Recipe r = kFsdp2;
  r.kind = RecipeKind::fsdp1;
  r.description = "PyTorch FSDP1 on Hugging Face style modules";
  r.kernels.attention = AttentionKernel::flash2;
  r.kernels.separate_casts = false;
  r.kernels.copies_sequence_parts = false;
  r.keeps.recomputes_operators = false;
  r.states.copies_gathered = false;
  r.states.flat_parameters = true;
  r.host.collective_launch = microseconds(60);
  r.errors.model = 0.04;
  r.defaults.grad_dtype = DType::bf16;  // torch reduces what it gathers unless told otherwise
  r.can.cp_exchanges = Capabilities{}.cp_exchanges;
  return r;
}

constexpr Recipe fsdp2_compile() {
  Recipe r = kFsdp2;
  r.kind = RecipeKind::fsdp2_compile;
  r.description = "PyTorch FSDP2 with torch.compile (torchtitan)";
  r.kernels.fused = true;
  r.kernels.fused_norms = true;
  r.kernels.attention = AttentionKernel::flex;
  r.kernels.loss = LossKind::chunked;
  r.kernels.fused_qkv = true;
  r.kernels.fused_scan_output = false;
  r.keeps.eager_copies = false;
  r.keeps.keeps_fp32_logits = true;
  r.states.gathers_once_in_pipeline = true;
  r.host = {.launch = microseconds(10),
            .collective_launch = microseconds(50),
            .step_overhead = Seconds(0.005)};
  // Eight runs of torchtitan's (benchmarks, 2024-12) reserved 1.07 to 1.37 times what is allocated
  // by ours, 1 GiB aside; 1.15 in the median.
  r.memory.allocator_overhead = 0.15;
  r.memory.allocator_slack = gib(1);
  r.errors.model = 0.15;
  r.defaults.compile = true;
  r.can.schedules = set_of(ScheduleKind::gpipe, ScheduleKind::one_f_one_b,
                           ScheduleKind::interleaved, ScheduleKind::zbv);
  r.can.precisions = kAllButFp32;
  // OPTIMIZERS in torchtitan b5bcd76c, torchtitan/components/optimizer/optimizer.py:143; its
  // DistMuon wants FlexShard's placement of whole matrices, which is not modelled.
  r.can.optimizers = set_of(OptimizerKind::adam);
  // eager: layers are compiled and the loss is not (torchtitan's compile.components, and programs
  // that compile layers of Hugging Face's models).
  r.can.losses = set_of(LossKind::chunked, LossKind::compiled, LossKind::eager, LossKind::narrow);
  r.can.pipeline = true;
  r.can.takes_layout = true;                        // module_fqns_per_model_part
  r.can.sequence_split = SequenceSplit::unasked;    // enable_sequence_parallel is true by default
  r.can.cp_exchanges = set_of(CpComm::all_gather);  // torchtitan gathers keys and values
  r.can.dispatchers.add(MoeDispatcher::deepep);     // expert_parallel_comm_backend
  r.can.recompute = set_of(RecomputeChoice::unnamed);
  return r;
}

constexpr Recipe kNanotron{
    .kind = RecipeKind::nanotron,
    .description = "nanotron: TP with reduce-scatter, PP 1F1B, ZeRO-0/1",
    .kernels = {.fused =
                    false,  // modeling_llama.py: RoPE and SwiGLU in eager mode, norms in Triton
                .attention = AttentionKernel::flash2,
                .loss = LossKind::unfused,
                .fused_gradient_accumulation = false},  // FP32GradientAccumulator adds in a hook
    .keeps = {.eager_copies = true, .selective = only_core_attn()},
    // DDP's buckets of bf16 gradients (ddp_bucket_cap_mb); all_gather_coalesced in nanotron's
    // zero.py.
    .states = {.buckets = ReductionBuckets{.size = mib(25), .gathers_at_once = true}},
    .host = {.launch = microseconds(30),
             .collective_launch = microseconds(250),
             .step_overhead = Seconds(0.01),
             .synchronous_p2p = true,
             .ring = RingDelays{.pipelined_step = microseconds(250),
                                .crossing_step = microseconds(40),
                                .stalled_message = Seconds(0.28)}},
    .memory = {.context = gib(1.6),
               .communicator = mib(120),
               .allocator_overhead = 0.05,
               .allocator_slack = gib(1)},
    .errors = {.model = 0.14},
    .can = {.schedules = set_of(ScheduleKind::gpipe, ScheduleKind::one_f_one_b),
            .precisions = set_of(Precision::bf16, Precision::fp16),
            .optimizers = kAdamAndSgd,
            .losses = set_of(LossKind::unfused),
            .placement = LayerPlacement::by_cost,
            // Its tp mode is reduce-scatter by default.
            .sequence_split = SequenceSplit::unasked}};

// What DeepSeek says of the trainer of DeepSeek-V3 (arXiv 2412.19437, 3.2 and 3.3): DualPipe,
// DeepEP, experts in fp8 by DeepGEMM's one kernel over all of them, maxima of tiles found as they
// are cast, and no tensor parallelism. The rest is taken for Megatron's; nothing of it was measured
// here.
constexpr Recipe dualpipe() {
  Recipe r = kMegatron;
  r.kind = RecipeKind::dualpipe;
  r.description = "DeepSeek's trainer as its reports tell of it: DualPipe, DeepEP, fp8 in tiles";
  r.kernels.current_scaling = false;
  r.kernels.norms_in_linears = false;
  r.kernels.one_product_per_expert = false;
  r.kernels.parallel_adapters = false;
  r.kernels.narrow_dispatch = true;
  r.states.fp8_parameters = false;
  r.states.whole_reductions = false;
  r.host.synchronous_p2p = false;
  r.host.overlaps_p2p = true;
  r.errors = {.model = 0.2};
  r.can = {.schedules = set_of(ScheduleKind::one_f_one_b, ScheduleKind::dualpipe),
           .precisions = set_of(Precision::bf16, Precision::fp8),
           .losses = set_of(LossKind::native),
           .takes_layout = true,
           .sequence_split = SequenceSplit::unasked,
           .recompute = set_of(RecomputeChoice::modules),
           .dispatchers = set_of(MoeDispatcher::alltoall, MoeDispatcher::deepep)};
  return r;
}

constexpr Recipe kOwn{
    .kind = RecipeKind::qplan,
    .description = "qplan's own executor",
    .executable = true,
    .kernels = {.rows_by_sequence = true,
                .own_recurrences = true,
                .adapters_in_products = true,
                .narrow_experts = false,
                .fused_qk_norm = true,
                .fills_new_arrays = false},
    .keeps = {.selective = only_core_attn(), .recomputes_dead_ops = false},
    .states = {.copies_unshared = true,
               .adds_gradients = true,
               .reduces_as_kept = false,
               .sums_shared_gradients = true,
               .shares_tied_table = true,
               .clips_in_update = true,
               .offloads_as_reduced = false,
               .alone_as_zero1 = true},
    .host = {.launch = microseconds(3),
             .collective_launch = microseconds(5),
             .moe_sync = false,
             .overlaps_p2p = true,
             // Messages hide behind compute; one that waits keeps its multiprocessors, and a stage
             // may wait for two and send two at once.
             .message_blocks = 2,
             .updates_outside_graph = true},
    .memory = {.context = gib(0.63),
               .one_arena = true,
               .message_buffers = true,
               .nccl_as_measured = true},
    .form = {.routing = true,
             .fp8_scales = true,
             .sinks = true,
             .context_parts = true,
             .rotary_key = true,
             .loss = true,
             .vision = true},
    // Its collectives have 32 multiprocessors each (nccl_world.cpp). Reductions of layers beside
    // their backward take 1.26 to 2.7 times as long as alone, 1.5 in the median of ten plans of two
    // H200 (docs/evidence/archive/draws-2026-11-30-two-h200.json); the products then lose 0.76 to
    // 1.1 times what the collective takes alone (traced in six plans,
    // steps-2026-11-29-two-h200.json beside it): 1.5 (1 - 1/2.05) = 0.77. In one queue it is the
    // same sum: there they wait for each other, at full speed.
    .beside_nvlink = BesideNvlink{2.05, 1.5},
    .errors = {.model = 0.1},
    .defaults = {.overlap = overlaps(false, true, true)},
    .can = {.schedules =
                set_of(ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved,
                       ScheduleKind::zb_h1, ScheduleKind::zbv, ScheduleKind::dualpipe),
            .precisions = set_of(Precision::bf16, Precision::fp8, Precision::fp32),
            .optimizers = kAdamAndSgd | set_of(OptimizerKind::adafactor, OptimizerKind::muon),
            .losses = set_of(LossKind::fused),
            .takes_layout = true,
            .zero = {1, 3},
            .offload = StateOffload::optimizer,
            .sequence_split = SequenceSplit::unasked,
            .recompute = set_of(RecomputeChoice::blocks, RecomputeChoice::modules)}};

// In the order of RecipeKind.
constexpr std::array kRecipes{
    kMegatron, kMegatronLegacy, megatron_deepspeed(), megatron_fsdp(), kDeepSpeedModules, ddp(),
    fsdp1(),   kFsdp2,          fsdp2_compile(),      kNanotron,       dualpipe(),        kOwn};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kRecipes.size(); ++i) {
    if (kRecipes[i].kind != static_cast<RecipeKind>(i)) return false;
  }
  return true;
}
static_assert(in_order());

// What a row says of itself is what its families say of it.
constexpr bool in_families() {
  for (const Recipe& r : kRecipes) {
    const bool shards_all = r.states.shard_style == ShardStyle::fully_sharded;
    if (r.kernels.parallel_adapters != kMegatronCore.has(r.kind) ||
        r.states.fp8_parameters != kDistributedOptimizer.has(r.kind) ||
        shards_all != (kTorch | kMegatronFsdp).has(r.kind) ||
        r.can.losses.has(LossKind::liger) != kHuggingFace.has(r.kind)) {
      return false;
    }
  }
  return true;
}
static_assert(in_families(), "a recipe is not in the families that its row speaks of");

}  // namespace

const Recipe& recipe_of(RecipeKind kind) {
  return kRecipes[static_cast<std::size_t>(kind)];
}

}  // namespace qplan
