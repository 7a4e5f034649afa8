#pragma once
// Whose implementation of the step this is: a small table of data. Predicting Megatron, FSDP2 or
// our own executor is one code path with another row of this table.

#include <cstdint>
#include <optional>
#include <string_view>

#include "models/dtype.h"
#include "models/plan/parallel_plan.h"
#include "models/plan/recipe_kind.h"
#include "models/program/capabilities.h"
#include "models/program/op.h"
#include "models/units.h"

namespace qplan {

// How the sharded data-parallel states move.
enum class ShardStyle : std::uint8_t {
  distributed_optimizer,  // Megatron: whole gradients on each rank, optimizer sharded, one gather a
                          // step
  fully_sharded  // FSDP, ZeRO-3: parameters gathered per layer, gradients reduced per layer
};

// Which kernels run, and over what.
struct KernelChoices {
  bool fused = true;        // norms, SwiGLU and RoPE are one kernel each
  bool fused_norms = true;  // norms are one kernel each, even where the others are not
  // Transformer Engine's rotary kernel takes no factor on cosines and sines: where YaRN has one,
  // Megatron falls back on torch's operations (apply_rotary_pos_emb, megatron-core 0.16). Latent
  // attention has a kernel of its own that does.
  bool fused_rope_magnitude = true;
  AttentionKernel attention = AttentionKernel::fused;  // unfused: probabilities are stored
  bool dropout = false;                                // masks are kept (Megatron of 2021)
  LossKind loss = LossKind::fused;                     // where the plan names none
  // torchao makes fp8 arrays by three kernels: one for the scale, one for the cast, one for the
  // transposed copy (a compiler cannot fuse a cast with the maximum that it needs), and it casts
  // weights in every microbatch. Transformer Engine casts and transposes at once, weights once a
  // step.
  bool separate_casts = false;
  // fp8 scales an operand by its own maximum, which a pass of its own finds before the cast:
  // tensorwise current scaling, Megatron-Bridge's fp8 on Hopper and what `emit` writes. Delayed
  // scaling finds it in the cast (Transformer Engine v2.12, Float8CurrentScalingQuantizer).
  bool current_scaling = false;
  // Queries, keys and values, and gate and up projection, are layers of their own (Hugging Face's
  // and torchtitan's modules of gated models): each has a product of its own in every pass, and
  // backward adds up what they give for their common input.
  bool separate_projections = false;
  // Queries, keys and values are one layer even where `separate_projections` holds (torchtitan
  // since April 2026: fuse_qkv in its models).
  bool fused_qkv = false;
  // Norms are part of the product behind them (Transformer Engine's LayerNormLinear), but before
  // routed experts and latent attention: recomputing `layernorm` drops what those two make alone,
  // recomputing `mlp` what a dense layer's second norm makes (measured on Megatron's own layers:
  // docs/evidence/archive/issue3-fourteenth-round.md).
  bool norms_in_linears = false;
  // Gated DeltaNet's queries and keys are repeated for each value head before its kernel, and
  // normalised by one of their own (_prepare_input_for_gated_delta_rule in Megatron-LM d98e8a64,
  // core/ssm/gated_delta_net/common.py); fla's kernel takes them as they are.
  bool expands_key_heads = false;
  // Mamba-2's gated norm and output projection are part of the scan's autograd function, which
  // makes the norm's result again in backward, and rows go by sequence (transformers' module);
  // Megatron's are modules of their own, behind a gate in the scan's kernel.
  bool fused_scan_output = false;
  // Rows go by sequence, then token, as kernels of sequences take them; Megatron's go by token, and
  // are turned before Mamba-2's scan and behind it.
  bool rows_by_sequence = false;
  // The delta rule and the scan are our executor's kernels: forward leaves nothing but its output
  // for backward, and both have scratch of their own sizes (own_scratch() in op.h).
  bool own_recurrences = false;
  // The host launches a grouped product expert by expert.
  bool one_product_per_expert = false;
  // Rows behind the last expert's are cleared on one rank, too, where there are none.
  bool clears_expert_rows = false;
  // torch's functional collectives know the first dimension alone: along the sequence of a batch a
  // gather is put together by torch.cat, and what is reduced and scattered is cut up by it first
  // (torch/distributed/_functional_collectives.py), a copy of the whole array each. Async tensor
  // parallelism does without.
  bool copies_sequence_parts = false;
  // Without sequence parallelism the gradient of a column-parallel layer's input is reduced behind
  // the product of its weight gradient, not beside it (Megatron until 2022, without
  // async_tensor_model_parallel_allreduce; BigScience's Megatron-DeepSpeed to the end).
  bool waits_for_input_gradients = false;
  // LoRA's second products add to the layer's output themselves, and the first ones of weights that
  // are packed are one.
  bool adapters_in_products = false;
  // LoRA's matrices are parallel layers of their own, one pair a layer of the framework's (q, k and
  // v are one), and one pair for all experts of a rank (ParallelLinearAdapter in Megatron-Bridge
  // 067f987d, src/megatron/bridge/peft/utils.py).
  bool parallel_adapters = false;
  // Under fp8 experts', shared experts' and latent attention's operands become fp8 as other layers'
  // do; else their products stay in 16 bits (our grouped kernel takes nothing narrower).
  bool narrow_experts = true;
  // Under fp8 rows become fp8 before they are sent to experts, as gradients do in backward; what
  // comes back has 16 bits (arXiv 2412.19437, 3.3.3).
  bool narrow_dispatch = false;
  // Norms of queries and keys run with the rotation behind them and its copy of the values, one
  // pass over what one rank's heads are packed in.
  bool fused_qk_norm = false;
  // A plan in a fixed order fills every new array first (torch.utils.deterministic's
  // fill_uninitialized_memory, on where deterministic algorithms are).
  bool fills_new_arrays = true;
  bool fused_gradient_accumulation = true;  // weight-gradient products add to an fp32 main_grad
  bool fused_adam = true;
  // Muon takes gate and up projection, one layer, as one matrix; queries, keys and values, one
  // layer too, apart (--muon-split-qkv, on in Megatron-LM d98e8a64).
  bool orthogonalizes_layers = false;
};

// What stays for backward, and what recomputation drops of it.
struct KeptForBackward {
  // Eager modules keep fp32 copies of norms and rotary inputs and both factors of SwiGLU.
  bool eager_copies = false;
  // Transformer Engine's loss before release 2.18 leaves the gradient, in 16 bits, where the logits
  // were.
  bool te_loss_in_place = false;
  bool dummy_weight_gradients = false;   // TE keeps one bf16 dummy wgrad per distinct weight shape
  EnumSet<RecomputeModule> selective{};  // what recompute `selective` without modules drops
  // Recompute `selective` without modules goes by operators (recompute.h), as torchtitan's does.
  bool recomputes_operators = false;
  // Backward runs a recomputed layer whole once more: reentrant checkpoints (Megatron's,
  // nanotron's, DeepSpeed's CheckpointFunction). Elsewhere backward leaves out ops whose results it
  // does not read, the last product and the messages behind it among them: torch's other
  // checkpoints stop there (set_checkpoint_early_stop, on since torch 2.1, and with
  // checkpoint_wrapper's default), a compiled backward has no dead ops, nor has ours.
  bool recomputes_dead_ops = true;
  // Where a unit's weights are frozen, FSDP1 learns from a hook on the unit's inputs when to let
  // what it gathered go (_register_post_backward_reshard_only_hook in torch's
  // fsdp/_runtime_utils.py). Reentrant checkpoints, which transformers 4 takes unasked, make those
  // inputs leaves of a graph of their own. What counts their hooks holds the node that adds up
  // their gradients (register_multi_grad_hook in torch/autograd/graph.py), and that node holds
  // them: until backward has ended, every layer's input and its gradient stay.
  bool frozen_inputs_stay = false;
  // The eager loss keeps logits in fp32 beside their log-softmax (torch's own modules; transformers
  // 4 shifts them, which makes another array). transformers 5 shifts labels, and nobody holds the
  // logits once the loss has their log-softmax (ForCausalLMLoss in loss/loss_utils.py).
  bool keeps_fp32_logits = true;
};

// DistributedDataParallel's buckets (nanotron).
struct ReductionBuckets {
  Bytes size{};                  // a reduction sends whole matrices of about so much
  bool gathers_at_once = false;  // one call gathers the updated parameters of all blocks
};

// Parameters, gradients, optimizer states: which a rank holds and how they move.
struct StateHandling {
  ShardStyle shard_style = ShardStyle::distributed_optimizer;
  DType working_params = DType::bf16;  // fp32: FSDP keeps only fp32 shards and gathers bf16 copies
  DType reduce_dtype = DType::fp32;    // of gradient reductions
  bool fp32_accumulation = true;       // an fp32 main_grad buffer holds the sum of gradients
  // A microbatch's gradients stay whole arrays of 16 bits until the next backward, and become fp32
  // before they are added, where the plan keeps gradients in fp32 (BF16_Optimizer in DeepSpeed).
  bool widens_gradients = false;
  bool drops_gradients = false;   // from the update until the next backward makes new ones
  bool whole_reductions = false;  // behind pipeline rank 0 a chunk is one bucket (schedule.h)
  // FSDP2 copies shards into one buffer, gathers into another and copies each parameter out of it,
  // and its gradients into a reduction's (torch's _fsdp_collectives.py); FSDP1's and
  // Megatron-FSDP's parameters are views of theirs.
  bool copies_gathered = false;
  // A block's whole parameters are one array: what this rank alone holds of a block whose others
  // are gathered (experts, where each data-parallel rank has its own) is copied beside the gather.
  bool copies_unshared = false;
  // FSDP1's modules see views of one flat array: autograd puts their gradients together in another
  // (backward of torch.split), which is divided by about the root of the ranks before it is reduced
  // (_div_if_needed in torch's fsdp/_runtime_utils.py).
  bool flat_parameters = false;
  // Every gradient is added to one array that a step clears, whoever sums: products, biases, norms
  // and the rows of an embedding's table, for which autograd makes a whole table of zeros.
  bool adds_gradients = false;
  // Gradients that the plan keeps in 16 bits are reduced in 16 bits; else in `reduce_dtype`.
  bool reduces_as_kept = true;
  // Gradients of what ranks hold alike under sequence parallelism (norms) are summed by ops of
  // their own. Megatron does this too (finalize_model_grads.py); in the recipes without it is part
  // of what their errors.model was measured with. A tied table's two copies are summed in all.
  bool sums_shared_gradients = false;
  // A tied table on one stage has one set of states; else it is priced without that knowledge.
  bool shares_tied_table = false;
  // The step's update multiplies by the clipping factor as it reads; else clipping is a pass over
  // the gradients (Megatron's multi_tensor_scale, torch's and DeepSpeed's foreach multiplication).
  bool clips_in_update = false;
  // The optimizer updates the weights that the model computes with, in whatever format they were
  // loaded, and has no other copy: one whose master weights have 16 bits was loaded so.
  bool updates_working_weights = false;
  // With the optimizer on the host, gradients go there as they are reduced (DeepSpeed); else when
  // all are there.
  bool offloads_as_reduced = true;
  // In a pipeline, parameters stay gathered through a step and gradients are reduced once, whatever
  // the ZeRO stage: torchtitan does not reshard after forward then, and torch's pipeline stages
  // reduce with their last microbatch.
  bool gathers_once_in_pipeline = false;
  // A rank that shares its states with nobody has them as under ZeRO-1: gradients are added up
  // where they stay, and weights are not copied.
  bool alone_as_zero1 = false;
  // Linear layers keep their weights in fp8 alone under fp8: Megatron's fp8_param_gather, which
  // Megatron-Bridge's fp8 presets turn on (training/mixed_precision.py, v0.2.0 and v0.4.1).
  bool fp8_parameters = false;
  // DeepSpeed's buckets of so many elements: two (overlap_comm) hold gradients on their way from
  // before the loss's backward to the last layer's (setup_buckets, _release_ipg_buffers in its
  // zero/stage_1_and_2.py, 0.19.8). Two H100, ZeRO-2 and 3, buckets of 5e8 and of 1e6:
  // docs/evidence/lora.md.
  std::int64_t bucket_elements = 0;
  // Under ZeRO-1 and 2 the step makes its share of the gradients one array, and that fp32, while
  // both the gradients and their copy are there (flat_grad_partition in the same file).
  bool flattens_gradients = false;
  std::optional<ReductionBuckets> buckets{};
};

// What each expert of a grouped product costs the launching thread, where it goes expert by expert.
struct ExpertLaunches {
  Seconds product{};
  // Its operand becomes fp8: a tensor object, its buffers, its kernels (Transformer Engine's
  // split_quantize).
  Seconds cast{};
  // Tensorwise current scaling takes this much longer in the same call: kernels of their own clear
  // the maximum, find it and make it a scale (three more a tensor), and buffers are not allocated
  // all at once as MXFP8's are (Transformer Engine v2.12, split_quantize,
  // Float8CurrentScalingQuantizer::quantize_impl).
  Seconds scale{};
};

// What tensor-parallel rings and the pipeline's messages lose between nodes (nanotron on H100 nodes
// with EFA; runs of the HF Ultra-Scale playbook).
struct RingDelays {
  // Once the pipeline leaves a node, each step of a ring takes the launching thread this much
  // longer: a layer takes 4.5 ms at least on tp 2-8 and 8.4 on tp 16 without pp, whatever the
  // tokens; with pp across nodes 8, 13, 21 and 44 ms on tp 2, 4, 8 and 16, over the layers of the
  // longest stage (medians of 91 runs). Why is not known; the floor grows with the ring's steps.
  Seconds pipelined_step{};
  // Once the ring itself leaves its node, each step takes the stream this much longer: a gather of
  // any size takes 0.7 ms over 16 H100 and 1.75 ms over 32, where EFA's latencies come to 0.14 and
  // 0.34. Reductions and gathers of data parallelism on the same nodes show nothing of it.
  Seconds crossing_step{};
  // Either end of a pipeline's message between nodes goes on this much later where the
  // tensor-parallel rings of its stages lie over more than two nodes. Most pipelines lose nothing a
  // message, the others 0.25 to 0.36 s at each end whatever its size, hardly one between: all 24 on
  // tp 32, of two models and micro-batches of 1 to 128, and 39 of 262 on tp 1 to 16, which their
  // plans do not tell from the rest. Why is not known.
  Seconds stalled_message{};
};

// What the launching thread does.
struct HostWork {
  Seconds launch{};             // of one kernel, framework overhead included
  Seconds collective_launch{};  // of one collective, its autograd function included
  // Where an op is a module with autograd around it, `launch` is of the module, and this of each
  // kernel further: an op's second and later ones, pieces that a loop in C++ enqueues, kernels over
  // lists of parameters at a step's edges. Absent: `launch` for these, too.
  std::optional<Seconds> further_launch{};
  // Of the cast of a dense operand to fp8 within its module, and of the maximum's kernel where one
  // finds it apart. Absent: `launch`.
  std::optional<Seconds> cast_launch{};
  ExpertLaunches expert{};
  // Beside `launch`, what hooks in Python take: docs/evidence/lora.md tells how they were read off
  // steps of 256 tokens.
  Seconds checkpoint{};     // of each stretch that is recomputed
  Seconds gradient_hook{};  // ZeRO: of each trained parameter's gradient
  Seconds module_hook{};    // ZeRO-3: of each module with parameters, forward or backward
  // Of a dequantisation (bitsandbytes' and GPTQ's modules). Absent: `launch`.
  std::optional<Seconds> dequantize_launch{};
  Seconds step_overhead{};    // data loader, logging: once a step
  bool moe_sync = true;       // the host reads token counts in every MoE layer
  bool overlaps_p2p = false;  // plain 1F1B sends and receives beside compute
  // Blocks of the kernel that waits for a message between stages, each on a multiprocessor of its
  // own; 0: a message that waits keeps none.
  int message_blocks = 0;
  // The launching thread waits for each message of plain 1F1B. Megatron's p2p_communication.py
  // calls torch.cuda.synchronize() after each batch of sends and receives (batch_p2p_sync, its
  // default), unless interleaving overlaps them; nanotron's p2p.py copies a tensor's shape to the
  // GPU before it sends it and reads it back before it receives it.
  bool synchronous_p2p = false;
  // A captured step leaves the optimizer, whose settings change, to the launching thread.
  bool updates_outside_graph = false;
  // Without sequence parallelism the tensor-parallel ranks of a stage hold the same output: each
  // sends its share and the receivers gather it in their node (Megatron until 2022, section 4.1 of
  // arXiv 2104.04473; DeepSpeed's pipeline engine, is_pipe_partitioned).
  bool scatters_boundary = false;
  std::optional<RingDelays> ring{};
};

// Memory besides the program.
struct OtherMemory {
  Bytes context{};                // CUDA context, kernels' code, cuBLAS workspaces
  Bytes communicator{};           // NCCL buffers, per communicator
  double allocator_overhead = 0;  // reserved / allocated - 1
  Bytes allocator_slack{};        // the caching allocator holds it in addition
  bool one_arena = false;         // all slots lie in one arena: a captured step needs no pools
  bool message_buffers = false;   // each link has one at both ends: sent from, received into
  // What products of matrices fill while they run lies in torch's pool and is never given back
  // (product_workspaces() in costmodel/evaluate.cpp).
  bool product_workspaces = false;
  bool engine_layers = true;      // ... of Transformer Engine's layers, or of torch's
  bool expert_workspaces = true;  // ... and of experts' products, which run on streams of their own
  // NCCL's buffers as they were measured by kind of group (the profile's `nccl`), instead of
  // `communicator` for each.
  bool nccl_as_measured = false;
};

// What of the step the ops say one by one. A program that ranks run needs every array that one op
// hands to another; where a library's kernel is priced whole, what happens inside is its price.
struct SpelledOut {
  // Routing: counts of rows, who gets how many, probabilities beside their rows, the gate of shared
  // experts and the auxiliary loss's counts are arrays of their own.
  bool routing = false;
  bool fp8_scales = false;  // scales of fp8 arrays and their transposed copies (fp8_linear.cpp)
  bool sinks = false;       // attention's learned logits are read, their gradients written
  // Context parallelism attends part by part: the own keys beside what travels, and copies around
  // an exchange of heads. Else as Transformer Engine does (attention_core.cpp).
  bool context_parts = false;
  bool rotary_key = false;  // latent attention's travels beside the normed latent
  bool loss = false;        // maxima and sums of ranks' shares of the vocabulary
  bool vision = false;      // taps, tokens and their gradients travel between blocks
};

// What the recipe leaves out of the step time, one sigma.
struct ModelErrors {
  // From the errors of measured runs after kernels' and collectives' own
  // (docs/evidence/archive/issue3-accuracy.md); 0.2 where nothing was measured.
  double model = 0.05;
  // On top with experts: releases of one framework differ by half on one layout (Qwen3-30B on
  // GB300, Megatron-Bridge 26.02 to 26.06: 30.4k to 45.3k tokens/s a GPU).
  double expert = 0.18;
  // Instead of `expert` where an expert takes a limited number of copies: what the paths of padding
  // and dropping do besides is the least known part of it (NeMo of 2025 and PAI, 24 runs: 12% in
  // the median, 26% four times in five; dropless 6 and 10%).
  double dropping = 0.18;
};

// What a plan says where nobody asked.
struct PlanDefaults {
  EnumSet<OverlapKind> overlap{};
  DType grad_dtype = DType::fp32;
  int zero = 1;
  bool compile = false;  // by torch.compile
};

// How much longer compute takes beside a collective inside a node, and the collective beside it.
struct BesideNvlink {
  double compute = 1, comm = 1;
};

struct Recipe {
  RecipeKind kind = RecipeKind::megatron;
  std::string_view description;
  bool executable = false;  // `qplan run` takes its plans
  KernelChoices kernels{};
  KeptForBackward keeps{};
  StateHandling states{};
  HostWork host{};
  OtherMemory memory{};
  SpelledOut form{};
  // Where its collectives are not those that the profile's figures are of.
  std::optional<BesideNvlink> beside_nvlink{};
  ModelErrors errors{};
  PlanDefaults defaults{};
  Capabilities can{};

  // Layers are Transformer Engine's, which takes attention's kernel where nobody names one.
  [[nodiscard]] constexpr bool has_engine_layers() const {
    return memory.product_workspaces && memory.engine_layers;
  }
};

const Recipe& recipe_of(RecipeKind kind);

// A recipe as its framework was in a month, 202412 for December 2024; 0: today's.
// - fsdp2_compile: torchtitan compiles the loss like the model since 2025-04-02 (pull request
//   1033); queries, keys and values are one layer since 2026-04-16 (2878), the loss runs in chunks
//   since 2026-04-27 (2937).
//   FlexAttention takes the place of torch's own attention on 2026-06-09 (3571).
// - megatron: its fused loss is of 2024-06-14 (7b4a6d76c9); Transformer Engine's gives its gradient
//   in fp32 from release 2.18 on, which Megatron-Bridge took in August 2026. Its fp8 was by delayed
//   scaling in NeMo, before Megatron-Bridge's first release in September 2025.
// - ddp, deepspeed, fsdp1: transformers 5.0 of 2026-01-26 multiplies experts by one grouped product
//   (get_correct_experts_implementation in its modeling_utils.py), checkpoints without reentrance
//   (gradient_checkpointing_enable) and updates by torch's fused AdamW (TrainingArguments.optim,
//   with torch 2.8 and later).
// - fsdp1: what is recomputed runs whole before torch 2.1 of October 2023, which stops where
//   backward has what it needs (set_checkpoint_early_stop). Published runs of 2022-23 are of models
//   with attention kernels (MPT's Triton kernel is one) and losses of their own; later ones are
//   Hugging Face's.
Recipe recipe_of_month(RecipeKind kind, int month);

}  // namespace qplan
