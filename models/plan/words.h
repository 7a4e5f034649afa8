#pragma once
// The one table of a plan's words. A row says all there is to say of a word: how it is spelled and
// helped with, which values it takes, what it touches, who can say it. Parsing, JSON, help, the
// search space, enumeration, the keys of what is remembered, `emit`'s and `check`'s lists of
// changes, and the plans that property tests draw all walk this table. A new word is a member of
// ParallelPlan, a row here, and the code that gives it meaning (ARCHITECTURE.md has an example).

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "models/enum_set.h"
#include "models/plan/parallel_plan.h"
#include "models/plan/plan_text.h"
#include "models/plan/recipe_kind.h"

namespace qplan {

// When the one-line form shows a word.
enum class Shown : std::uint8_t { if_changed, always, if_pipelined, if_expert_parallel };

// How the command line takes a word, and what a search does with it.
enum class Given : std::uint8_t {
  once,    // one value for the whole job: every plan of a search has it
  listed,  // alternatives as a list: "1,2,4", "1..3", "none,full"
  again,   // a value has commas itself; alternatives repeat the option
  layout   // one list of numbers, for every plan of a search
};

// What a word can change of a step. Plans that agree in all words that touch `work` or `buffers`
// hold the same buffers in forward and backward, so that a search folds them once; the others only
// move states around.
enum class Touches : std::uint8_t { work, buffers, states };
inline constexpr EnumSet<Touches> kWork = set_of(Touches::work, Touches::buffers);
inline constexpr EnumSet<Touches> kStates = set_of(Touches::states);
inline constexpr EnumSet<Touches> kAll = kWork | kStates;

// Where a framework's files cannot say a plan, `emit` looks for the nearest plan that they can: it
// sets words back to their default, those that give way freely first. `last`: the word is what the
// plan is about, and has a place of its own in emit's list; `never`: it belongs to the job.
enum class GivesWay : std::uint8_t { freely, last, never };

// Of words that not every framework has: who has it, and what to say to the others.
struct SaidBy {
  RecipeSet recipes = kEvery;
  std::string_view rule;     // its id
  std::string_view lacks;    // "fsdp2 has no ..."
  std::string_view instead;  // "leave ... out"
  std::string_view source;
};

struct NoChoice {};

template <class T>
struct PlanWord {
  using Value = T;
  std::string_view key;  // in JSON, and accepted in the line
  T ParallelPlan::*member;
  std::string_view brief{};        // in the line; empty: the key. Numbers are glued to it ("tp4")
  std::int64_t low = 1, high = 1;  // of numbers
  std::conditional_t<std::is_enum_v<T>, EnumSet<T>, NoChoice> takes{};  // empty: every enumerator
  std::string_view value{};  // on the command line: what stands for one value
  std::string_view help{};   // a noun phrase; the values follow it by themselves
  Shown shown = Shown::if_changed;
  Given given = Given::listed;
  EnumSet<Touches> touches = kWork;
  GivesWay gives_way = GivesWay::freely;
  // Other kernels, launches or copies for the same numbers: a search leaves it as its recipe has
  // it, and tries it on the plan that it found (planner/search/untried.h).
  bool setting = false;
  SaidBy said_by{};

  [[nodiscard]] constexpr std::string_view name() const { return brief.empty() ? key : brief; }
};

// Upper bounds far above any machine whose products still fit 63 bits: tp*cp*pp*dp < 2^59,
// sequences x tokens <= 2^60.
inline constexpr std::int64_t kMaxDataDegree = 1 << 20;
inline constexpr std::int64_t kMaxCount = 1 << 30;

// In the order of the one-line form and of JSON.
inline constexpr std::tuple kPlanWords{
    // Degrees.
    PlanWord{.key = "tp",
             .member = &ParallelPlan::tp,
             .brief = "tp",
             .high = kMaxDegree,
             .value = "RANKS",
             .help = "tensor-parallel degree",
             .shown = Shown::always,
             .touches = kAll,
             .gives_way = GivesWay::last},
    PlanWord{.key = "pp",
             .member = &ParallelPlan::pp,
             .brief = "pp",
             .high = kMaxDegree,
             .value = "STAGES",
             .help = "pipeline-parallel degree",
             .shown = Shown::always,
             .touches = kAll,
             .gives_way = GivesWay::last},
    PlanWord{.key = "dp",
             .member = &ParallelPlan::dp,
             .brief = "dp",
             .high = kMaxDataDegree,
             .value = "RANKS",
             .help = "data-parallel degree",
             .shown = Shown::always,
             .touches = kAll,
             .gives_way = GivesWay::last},
    PlanWord{.key = "cp",
             .member = &ParallelPlan::cp,
             .brief = "cp",
             .high = kMaxDegree,
             .value = "RANKS",
             .help = "context-parallel degree",
             .touches = kAll,
             .gives_way = GivesWay::last},
    PlanWord{.key = "ep",
             .member = &ParallelPlan::ep,
             .brief = "ep",
             .high = kMaxDegree,
             .value = "RANKS",
             .help = "expert-parallel degree",
             .shown = Shown::if_expert_parallel,
             .touches = kAll,
             .gives_way = GivesWay::last},
    PlanWord{.key = "etp",
             .member = &ParallelPlan::etp,
             .brief = "etp",
             .high = kMaxDegree,
             .value = "RANKS",
             .help = "expert-tensor-parallel degree",
             .shown = Shown::if_expert_parallel,
             .touches = kAll,
             .gives_way = GivesWay::last},
    PlanWord{.key = "zero",
             .member = &ParallelPlan::zero,
             .brief = "zero",
             .low = 0,
             .high = 3,
             .value = "STAGE",
             .help = "ZeRO stage: what data parallelism shards (0-3)",
             .shown = Shown::always,
             .touches = kAll,
             .gives_way = GivesWay::last},
    PlanWord{.key = "fsdp_shard",
             .member = &ParallelPlan::fsdp_shard,
             .low = 0,
             .high = kMaxDataDegree,
             .value = "RANKS",
             .help = "ranks that share one copy of the states (HSDP); 0: all",
             .touches = kAll,
             .gives_way = GivesWay::last},

    // The batch.
    PlanWord{.key = "micro_batch_size",
             .member = &ParallelPlan::micro_batch_size,
             .brief = "mbs",
             .high = kMaxCount,
             .value = "SEQUENCES",
             .help = "sequences a rank handles at once",
             .shown = Shown::always,
             .gives_way = GivesWay::never},
    PlanWord{.key = "global_batch_size",
             .member = &ParallelPlan::global_batch_size,
             .brief = "gbs",
             .high = kMaxCount,
             .value = "SEQUENCES",
             .help = "sequences a step",
             .shown = Shown::always,
             .given = Given::once,
             .gives_way = GivesWay::never},
    PlanWord{.key = "seq_len",
             .member = &ParallelPlan::seq_len,
             .brief = "seq",
             .high = kMaxCount,
             .value = "TOKENS",
             .help = "tokens of a sequence",
             .shown = Shown::always,
             .given = Given::once,
             .gives_way = GivesWay::never},
    PlanWord{.key = "document_len",
             .member = &ParallelPlan::document_len,
             .brief = "doc",
             .low = 0,
             .high = kMaxCount,
             .value = "TOKENS",
             .help = "tokens of a document where sequences are packed and attention stays within "
                     "documents; 0: a sequence is one document",
             .given = Given::once,
             .gives_way = GivesWay::never},

    PlanWord{.key = "fpdt_chunk",
             .member = &ParallelPlan::fpdt_chunk,
             .low = 0,
             .high = kMaxCount,
             .value = "TOKENS",
             .help = "tokens of a sequence that layers go through at once, while keys and values "
                     "of the others wait on the host (FPDT, Ulysses-Offload); 0: all of them",
             .said_by = {.recipes = set_of(RecipeKind::megatron_deepspeed),
                         .rule = "fpdt_available",
                         .lacks = "sequences in chunks that wait on the host (FPDT)",
                         .instead = "leave fpdt_chunk out",
                         .source = "Megatron-DeepSpeed 4efb479d, megatron/arguments.py:979; "
                                   "qplan: no other recipe has it"}},

    // The pipeline.
    PlanWord{.key = "schedule",
             .member = &ParallelPlan::schedule,
             .value = "KIND",
             .help = "pipeline schedule",
             .shown = Shown::if_pipelined,
             .touches = kAll,
             .gives_way = GivesWay::last},
    PlanWord{.key = "vpp",
             .member = &ParallelPlan::vpp,
             .brief = "vpp",
             .high = kMaxDegree,
             .value = "CHUNKS",
             .help = "virtual stages of a pipeline rank",
             .touches = kAll,
             .gives_way = GivesWay::last},
    PlanWord{.key = "pipeline_layout",
             .member = &ParallelPlan::pipeline_layout,
             .brief = "layout",
             .value = "LAYERS",
             .help = "decoder layers of each virtual stage: 7+8+8+7, or 7+8*2+7",
             .given = Given::layout,
             .touches = kAll,
             .gives_way = GivesWay::last},

    // Layers.
    PlanWord{.key = "sequence_parallel",
             .member = &ParallelPlan::sequence_parallel,
             .brief = "sp",
             .value = "BOOL",
             .help = "norms and dropout split over tp",
             .touches = kAll,
             .gives_way = GivesWay::last},
    PlanWord{.key = "cp_comm",
             .member = &ParallelPlan::cp_comm,
             .value = "KIND",
             .help = "how ranks of a context exchange keys and values",
             .gives_way = GivesWay::last,
             .setting = true},
    PlanWord{.key = "attention_backend",
             .member = &ParallelPlan::attention_backend,
             .value = "KIND",
             .help = "library of attention (flash: FlashAttention-2, fused: cuDNN, or what runs as "
                     "fast, FlashAttention-3; unfused)",
             .given = Given::once,
             .setting = true,
             .said_by = {.recipes = kMegatronCore | kTorch,
                         .rule = "attention_backend_available",
                         .lacks = "choice of attention's library",
                         .instead = "leave attention_backend out",
                         .source = "Megatron-LM d98e8a64, --attention-backend; qplan: "
                                   "transformers' attn_implementation and torch's sdpa_kernel "
                                   "choose it under FSDP, and no other recipe has the choice"}},
    PlanWord{.key = "fp8_dot_product_attention",
             .member = &ParallelPlan::fp8_dot_product_attention,
             .value = "BOOL",
             .help = "attention's own products take fp8 operands, in both passes (Megatron's word)",
             .given = Given::once,
             .said_by = {.recipes = kMegatronCore,
                         .rule = "fp8_attention_available",
                         .lacks = "attention in fp8",
                         .instead = "leave fp8_dot_product_attention out",
                         .source = "Megatron-LM d98e8a64, "
                                   "megatron/core/transformer/transformer_config.py:640; qplan: no "
                                   "other recipe has the choice"}},
    PlanWord{.key = "dropout",
             .member = &ParallelPlan::dropout,
             .value = "BOOL",
             .help = "a share of attention's probabilities and of what is added to the residual is "
                     "dropped",
             .given = Given::once,
             .said_by = {.recipes = kMegatronCore,
                         .rule = "dropout_available",
                         .lacks = "choice of dropout",
                         .instead = "leave dropout out",
                         .source = "Megatron-LM d98e8a64, --attention-dropout, --hidden-dropout; "
                                   "qplan: no other recipe has the choice"}},
    PlanWord{.key = "precision",
             .member = &ParallelPlan::precision,
             .value = "FORMAT",
             .help = "number format of matrix products",
             .given = Given::once,
             .touches = kAll,
             .gives_way = GivesWay::last},
    PlanWord{.key = "recompute",
             .member = &ParallelPlan::recompute,
             .value = "WHAT",
             .help = "activations that are computed again instead of kept",
             .gives_way = GivesWay::last},
    PlanWord{.key = "offload",
             .member = &ParallelPlan::offload,
             .value = "WHAT",
             .help = "states that live on the host: none, or optimizer[:FRACTION],params,"
                     "activations[:LAYERS],nvme",
             .given = Given::again,
             .touches = kAll,
             .gives_way = GivesWay::last,
             .setting = true},

    // Experts.
    PlanWord{.key = "moe_dispatcher",
             .member = &ParallelPlan::moe_dispatcher,
             .value = "KIND",
             .help = "how tokens reach their experts",
             .setting = true},
    PlanWord{.key = "routing",
             .member = &ParallelPlan::routing,
             .value = "KIND",
             .help = "how evenly experts are loaded (natural: as --moe-imbalance says; in_turn: "
                     "evenly, and a token's experts are neighbours)",
             .given = Given::once,
             .gives_way = GivesWay::never},
    PlanWord{
        .key = "moe_capacity_factor",
        .member = &ParallelPlan::moe_capacity_factor,
        .brief = "capacity",
        .value = "RATIO",
        .help = "token copies that an expert takes of a rank, over the mean; the rest are "
                "dropped; 0: none are",
        .given = Given::once,
        .said_by =
            {.recipes = kCoreAndOwn,
             .rule = "capacity_available",
             .lacks = "capacity that drops token copies",
             .instead = "use capacity=0",
             .source = "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:917; "
                       "qplan: no other recipe has the choice"}},
    PlanWord{.key = "moe_token_drop_policy",
             .member = &ParallelPlan::moe_token_drop_policy,
             .brief = "drop",
             .value = "KIND",
             .help = "which copies are dropped: the least probable, or the last",
             .given = Given::once},
    PlanWord{
        .key = "moe_permute_fusion",
        .member = &ParallelPlan::moe_permute_fusion,
        .value = "BOOL",
        .help = "kernels of their own sort tokens by expert (Megatron's --moe-permute-fusion)",
        .given = Given::once,
        .setting = true,
        .said_by =
            {.recipes = kMegatronCore,
             .rule = "permute_fusion_available",
             .lacks = "other way to sort tokens by expert",
             .instead = "leave moe_permute_fusion=false out: it is a flag of "
                        "Megatron's",
             .source = "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:941; "
                       "qplan: no other recipe has the choice"}},
    PlanWord{.key = "fp8_param_gather",
             .member = &ParallelPlan::fp8_param_gather,
             .value = "BOOL",
             .help = "in fp8, weights are kept in fp8 alone; false: in bf16, with copies in fp8 "
                     "beside them (Megatron's --fp8-param-gather)",
             .given = Given::once,
             .touches = kStates,
             .said_by = {.recipes = kDistributedOptimizer,
                         .rule = "fp8_parameters_available",
                         .lacks = "choice of how fp8 keeps weights",
                         .instead = "leave fp8_param_gather=false out: it is a flag of Megatron's",
                         .source = "Megatron-LM d98e8a64, --fp8-param-gather; qplan: no other "
                                   "recipe has the choice"}},

    // Adapters.
    PlanWord{.key = "lora_rank",
             .member = &ParallelPlan::lora_rank,
             .brief = "lora",
             .low = 0,
             .high = kMaxDegree,
             .value = "RANK",
             .help = "rank of LoRA's adapters beside frozen weights; 0: every weight is trained",
             .given = Given::once,
             .touches = kAll,
             .gives_way = GivesWay::never},
    PlanWord{.key = "lora_alpha",
             .member = &ParallelPlan::lora_alpha,
             .high = kMaxCount,
             .value = "ALPHA",
             .help = "what adapters add is scaled by this over their rank",
             .given = Given::once,
             .touches = {},
             .gives_way = GivesWay::never},
    PlanWord{.key = "lora_targets",
             .member = &ParallelPlan::lora_targets,
             .value = "LIST",
             .help = "linear layers with adapters; none said: all but routed experts'",
             .given = Given::again,
             .touches = kAll,
             .gives_way = GivesWay::never},
    PlanWord{.key = "lora_dropout",
             .member = &ParallelPlan::lora_dropout,
             .value = "SHARE",
             .help = "share of what adapters read that is dropped",
             .given = Given::once,
             .gives_way = GivesWay::never},
    PlanWord{.key = "lora_a2a",
             .member = &ParallelPlan::lora_a2a,
             .value = "BOOL",
             .help = "adapters beside row-parallel layers exchange tokens for columns instead of "
                     "gathering them (Megatron-Bridge's a2a_experimental)",
             .given = Given::once,
             .gives_way = GivesWay::never,
             .said_by = {.recipes = kMegatronCore,
                         .rule = "lora_a2a_available",
                         .lacks = "all-to-all of adapters",
                         .instead = "leave lora_a2a out",
                         .source = "qplan: Megatron-Bridge 067f987d alone has parallel adapters "
                                   "(a2a_experimental in src/megatron/bridge/peft/lora.py)"}},
    PlanWord{.key = "lora_dtype",
             .member = &ParallelPlan::lora_dtype,
             .value = "FORMAT",
             .help = "format that adapters lie in (fp32: as PEFT makes them, with no other copy)",
             .given = Given::once,
             .touches = kAll,
             .gives_way = GivesWay::never,
             .said_by = {.recipes = set_of(RecipeKind::ddp),
                         .rule = "lora_dtype_available",
                         .lacks = "adapters in a format of their own",
                         .instead = "leave lora_dtype out",
                         .source = "PEFT 5d602fdb, src/peft/tuners/tuners_utils.py "
                                   "(cast_adapter_dtype); qplan: DeepSpeed makes all weights 16 "
                                   "bits and FSDP gathers in the format of activations"}},
    PlanWord{
        .key = "lora_embeddings",
        .member = &ParallelPlan::lora_embeddings,
        .value = "BOOL",
        .help = "embedding and head are trained beside adapters (PEFT's modules_to_save)",
        .given = Given::once,
        .touches = kAll,
        .gives_way = GivesWay::never,
        .said_by = {.recipes = kHuggingFace | set_of(RecipeKind::qplan),
                    .rule = "lora_embeddings_available",
                    .lacks = "embeddings that are trained beside adapters",
                    .instead = "leave lora_embeddings out",
                    .source = "PEFT 5d602fdb, src/peft/utils/other.py "
                              "(ModulesToSaveWrapper); Megatron-Bridge 067f987d, "
                              "src/megatron/bridge/peft/base.py (freezes every other weight)"}},
    PlanWord{.key = "dora",
             .member = &ParallelPlan::dora,
             .value = "BOOL",
             .help = "adapters have a trained magnitude a row of each weight (DoRA)",
             .given = Given::once,
             .touches = kAll,
             .gives_way = GivesWay::never,
             .said_by = {.recipes = kHuggingFace | kCoreAndOwn,
                         .rule = "dora_available",
                         .lacks = "DoRA",
                         .instead = "leave dora out",
                         .source = "PEFT 5d602fdb, src/peft/tuners/lora/dora.py; Megatron-Bridge "
                                   "067f987d, src/megatron/bridge/peft/dora.py; qplan: no other "
                                   "recipe has it"}},
    PlanWord{.key = "frozen_weights",
             .member = &ParallelPlan::frozen_weights,
             .brief = "frozen",
             .value = "FORMAT",
             .help = "format that linear layers' frozen weights lie in (nf4: QLoRA; int4: GPTQ)",
             .given = Given::once,
             .touches = kAll,
             .gives_way = GivesWay::never},
    PlanWord{.key = "fp32_norms",
             .member = &ParallelPlan::fp32_norms,
             .value = "BOOL",
             .help = "frozen norms are fp32, and hidden states beside bitsandbytes' layers (PEFT's "
                     "prepare_model_for_kbit_training)",
             .given = Given::once,
             .touches = kAll,
             .gives_way = GivesWay::never,
             .said_by = {.recipes = kHuggingFace,
                         .rule = "fp32_norms_available",
                         .lacks = "norms in fp32 beside quantised weights",
                         .instead = "leave fp32_norms out",
                         .source = "qplan: PEFT 0.13.2 (prepare_model_for_kbit_training in "
                                   "src/peft/utils/other.py), and no other recipe has Hugging "
                                   "Face's modules"}},
    PlanWord{.key = "module_kernels",
             .member = &ParallelPlan::module_kernels,
             .value = "KIND",
             .help = "what of Hugging Face's modules is one kernel each: nothing; norms and rotary "
                     "embeddings; SwiGLU, too (Liger's)",
             .given = Given::once,
             .setting = true,
             .said_by = {.recipes = kHuggingFace,
                         .rule = "module_kernels_available",
                         .lacks = "choice of its modules' kernels",
                         .instead = "leave module_kernels out",
                         .source = "transformers 5.23, src/transformers/integrations/liger.py; "
                                   "qplan: no other recipe has Hugging Face's modules"}},

    // States.
    PlanWord{.key = "gradient_accumulation_fusion",
             .member = &ParallelPlan::gradient_accumulation_fusion,
             .value = "BOOL",
             .help = "products of weight gradients add to the accumulated ones themselves; false: "
                     "a kernel after each does (Megatron's --no-gradient-accumulation-fusion)",
             .given = Given::once,
             .setting = true,
             .said_by = {.recipes = kMegatronCore,
                         .rule = "gradient_fusion_available",
                         .lacks = "choice of who adds gradients up",
                         .instead = "leave gradient_accumulation_fusion=false out: it is a flag of "
                                    "Megatron's",
                         .source = "Megatron-LM d98e8a64, --no-gradient-accumulation-fusion; "
                                   "qplan: no other recipe has the choice"}},
    PlanWord{
        .key = "sync_each_batch",
        .member = &ParallelPlan::sync_each_batch,
        .value = "BOOL",
        .help = "FSDP reduces every microbatch's gradients; false: it adds them up whole and "
                "reduces once a step (no_sync, what accelerate and Trainer do unasked)",
        .given = Given::once,
        .touches = kAll,
        .said_by = {.recipes = kTorch,
                    .rule = "sync_each_batch_available",
                    .lacks = "sums of whole gradients",
                    .instead = "leave sync_each_batch out",
                    .source = "accelerate 16cb6eb8, src/accelerate/accelerator.py:1289; qplan: "
                              "torch's no_sync and set_requires_gradient_sync are FSDP's alone"}},
    PlanWord{.key = "optimizer",
             .member = &ParallelPlan::optimizer,
             .value = "KIND",
             .help = "optimizer, and so the states beside the weights (sgd: with a momentum; muon: "
                     "Adam for embeddings, head, norms and biases)",
             .given = Given::once,
             .touches = kStates,
             .gives_way = GivesWay::never},
    PlanWord{.key = "grad_dtype",
             .member = &ParallelPlan::grad_dtype,
             .takes = set_of(DType::fp32, DType::bf16, DType::fp16),
             .value = "FORMAT",
             .help = "accumulated gradients",
             .touches = kAll},
    PlanWord{.key = "main_params_dtype",
             .member = &ParallelPlan::main_params_dtype,
             .takes = set_of(DType::fp32, DType::bf16, DType::fp16),
             .value = "FORMAT",
             .help = "master weights",
             .touches = kAll},
    PlanWord{.key = "moment_dtype",
             .member = &ParallelPlan::moment_dtype,
             .takes = set_of(DType::fp32, DType::bf16, DType::fp16, DType::fp8),
             .value = "FORMAT",
             .help = "Adam's moments",
             .touches = kStates},

    // How it is run.
    PlanWord{.key = "overlap",
             .member = &ParallelPlan::overlap,
             .value = "LIST",
             .help = "communication that is hidden behind compute: none, or several",
             .given = Given::again,
             .touches = kAll,
             .setting = true},
    PlanWord{
        .key = "cuda_graph",
        .member = &ParallelPlan::cuda_graph,
        .value = "BOOL",
        .help = "CUDA graphs launch the step",
        .setting = true,
        .said_by = {.recipes = kCoreAndOwn | set_of(RecipeKind::fsdp2_compile),
                    .rule = "cuda_graph_available",
                    .lacks = "CUDA graphs",
                    .instead = "leave cuda_graph out",
                    .source =
                        "Megatron-LM d98e8a64, --cuda-graph-impl; torchtitan b5bcd76c, "
                        "torchtitan/config/configs.py:75; qplan: no other recipe has the choice"}},
    PlanWord{.key = "cuda_graph_scope",
             .member = &ParallelPlan::cuda_graph_scope,
             .value = "SCOPE",
             .help = "what CUDA graphs capture: the step, layers but for routed experts, what "
                     "stands between attention and experts, or Mamba-2 layers",
             .setting = true},
    PlanWord{.key = "compile",
             .member = &ParallelPlan::compile,
             .value = "BOOL",
             .help = "torch.compile",
             .setting = true},
    PlanWord{.key = "deterministic",
             .member = &ParallelPlan::deterministic,
             .value = "BOOL",
             .help = "the same bits in every run, at some cost",
             .said_by = {.recipes = kCoreAndOwn,
                         .rule = "deterministic_available",
                         .lacks = "deterministic mode that qplan knows",
                         .instead = "leave deterministic out",
                         .source = "Megatron-LM d98e8a64, megatron/training/determinism.py:24; "
                                   "qplan: modes of other frameworks are not modelled"}},
    PlanWord{.key = "loss",
             .member = &ParallelPlan::loss,
             .value = "KIND",
             .help = "which cross-entropy runs (default: the framework's own)",
             .setting = true},
};

// Calls visit(word) for each row, in the table's order.
template <class Visit>
constexpr void for_each_word(Visit&& visit) {
  std::apply([&](const auto&... word) { (visit(word), ...); }, kPlanWords);
}

template <class A, class B>
constexpr bool is_member(A ParallelPlan::*a, B ParallelPlan::*b) {
  if constexpr (std::is_same_v<A, B>) {
    return a == b;
  } else {
    return false;
  }
}

template <class T, class... Members>
constexpr bool is_any_of(T ParallelPlan::*member, Members... members) {
  return (is_member(member, members) || ...);
}

// The row of a member: word_of<&ParallelPlan::tp>().key is "tp".
template <auto Member, std::size_t I = 0>
constexpr const auto& word_of() {
  if constexpr (is_member(std::get<I>(kPlanWords).member, Member)) {
    return std::get<I>(kPlanWords);
  } else {
    return word_of<Member, I + 1>();
  }
}

// What the command line says of a word.
struct WordText {
  std::string_view key, value;
  std::string help;      // its values included: "pipeline schedule: gpipe, 1f1b, ..."
  std::string fallback;  // the default of a plan, as it is written
  Given given = Given::listed;
  bool is_truth = false, is_number = false;
};
// Of every word, in the table's order.
std::vector<WordText> word_texts();

}  // namespace qplan
