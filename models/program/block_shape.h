#pragma once
// What a block depends on, besides the model and the recipe: the key of every memo. One table of
// its fields says which parts of a block each can change; from it come the hash and the smaller
// keys under which parts of blocks are remembered.

#include <cstdint>
#include <tuple>

#include "models/model_spec.h"
#include "models/plan/parallel_plan.h"
#include "models/plan/words.h"
#include "models/program/recipe.h"

namespace qplan {

enum class BlockKind : std::uint8_t {
  embedding,  // token (and position) lookup
  decoder,    // attention + MLP or experts
  head,       // final norm, logits, loss
  // Multi-token prediction (DeepSeek-V3): lookup of the token after each, and projection of (its
  // embedding, hidden), one layer, norm. The head makes logits and loss of both hidden states.
  mtp_embedding,
  mtp,
  patchify,     // pixels -> patches of the vision tower's width
  vision,       // one layer of the vision tower
  merger,       // vision tower -> text width, deepstack mergers included
  stage_entry,  // fully sharded: gathers the first block's parameters; drains the last reduction
  stage_exit,   // fully sharded: gathers the last block's parameters for backward
  step_edge     // once a step: gradient norm over all ranks, loss, data
};

// Parameters one rank holds, before data-parallel sharding.
struct RankParameters {
  std::int64_t dense = 0;    // sharded over dp*cp
  std::int64_t expert = 0;   // sharded over edp
  std::int64_t partial = 0;  // of the dense ones: with partial gradients
  // Beside those, which are trained: weights that are not, sharded the same way.
  std::int64_t frozen_dense = 0, frozen_expert = 0;
  std::int64_t frozen_linear = 0;  // of the frozen dense ones: linear layers' (experts all are)
  [[nodiscard]] std::int64_t total() const { return dense + expert; }
  [[nodiscard]] RankParameters frozen() const {
    return {.dense = frozen_dense, .expert = frozen_expert};
  }
  bool operator==(const RankParameters&) const = default;
};

// How a block that works with the embedding's table, but is not the embedding, comes by it: the
// head of a tied model, and the lookup of multi-token prediction.
enum class EmbeddingTable : std::uint8_t {
  own,     // none does
  copied,  // the embedding is on another pipeline rank: a copy, and the sum of both gradients
  shared   // on this rank: the embedding's own states
};

// Everything a block's op lists depend on, besides the model and the recipe. Equal shapes build
// equal blocks, so this is the key of every memo.
struct BlockShape {
  BlockKind kind = BlockKind::decoder;
  LayerKind layer;
  std::int64_t micro_batch_size = 1, seq_len = 4096;
  // Tokens of each sequence whose keys and values a cache holds: attention sees them, nothing else
  // does (generation).
  std::int64_t cached = 0;
  std::int64_t fpdt_chunk = 0;  // ParallelPlan::fpdt_chunk
  std::int64_t documents = 1;   // of a packed sequence, equally long; attention stays within each
  int tp = 1, cp = 1, ep = 1, etp = 1;
  int dense_shard = 1, expert_shard = 1;        // ranks that share one copy of the sharded states
  int dense_replicas = 1, expert_replicas = 1;  // copies of that (HSDP; ZeRO-0: all ranks)
  int zero = 0;
  bool sequence_parallel = false;
  CpComm cp_comm = CpComm::p2p;
  AttentionBackend attention_backend = AttentionBackend::automatic;
  bool fp8_dot_product_attention = false;
  bool dropout = false;  // whatever the recipe
  MoeDispatcher dispatcher = MoeDispatcher::alltoall;
  Precision precision = Precision::bf16;
  RecomputeKind recompute = RecomputeKind::none;
  EnumSet<RecomputeModule> recompute_modules;
  EnumSet<OverlapKind> overlap;
  DType grad_dtype = DType::fp32, main_params_dtype = DType::fp32, moment_dtype = DType::fp32;
  double optimizer_offload = 0;
  bool params_offload = false, activations_offload = false, nvme = false;
  // Vision: images of a microbatch, patches of an image. In a tower, and where the text takes its
  // tokens in; `tap`: the deepstack tap that a tower's layer feeds, or that a decoder layer adds.
  std::int64_t images = 0, patches = 0;
  std::int8_t tap = -1;
  double moe_load = 1;       // tokens on the busiest expert rank / mean
  bool moe_in_turn = false;  // a token's copies go to neighbouring experts (Routing::in_turn)
  double moe_capacity = 0;   // what an expert takes of a rank's copies / mean; 0: all
  EmbeddingTable embedding_table = EmbeddingTable::own;
  // Fully sharded: what the neighbouring blocks of the stage gather, in forward order.
  RankParameters next, previous;
  bool fresh_gradients = false;  // no gradients between the update and the next backward
  bool fp8_parameters = false;   // linear layers' weights are fp8, with no copy of 16 bits
  // Copies of linear layers' weights in the products' format, beside those of 16 bits.
  std::uint8_t narrow_copies = 0;
  // What a linear layer reads is cast the other way round as well, for its weight's gradient.
  bool casts_both_ways = true;
  bool counts_on_host = false;  // the launching thread reads how many rows each expert gets
  // SwiGLU and the casts around it are epilogues of the experts' products.
  bool fused_experts = false;
  // Selective recomputation goes by operators, not modules (Recipe::keeps.recomputes_operators).
  bool recomputes_operators = false;
  bool deterministic = false;                // ParallelPlan::deterministic
  bool gradient_accumulation_fusion = true;  // ParallelPlan::gradient_accumulation_fusion
  LossKind loss = LossKind::by_framework;    // ParallelPlan::loss
  bool sums_whole = false;   // gradients of sharded parameters (sums_whole_gradients)
  int lora_rank = 0;         // ParallelPlan::lora_rank
  LoraTargets lora_targets;  // ParallelPlan::lora_targets
  double lora_dropout = 0;   // ParallelPlan::lora_dropout
  FrozenFormat frozen_weights = FrozenFormat::computed;  // ParallelPlan::frozen_weights
  bool lora_a2a = false;                                 // ParallelPlan::lora_a2a
  AdapterFormat lora_dtype = AdapterFormat::computed;    // ParallelPlan::lora_dtype
  bool lora_embeddings = false;                          // ParallelPlan::lora_embeddings
  bool dora = false;                                     // ParallelPlan::dora
  bool fp32_norms = false;                               // ParallelPlan::fp32_norms
  ModuleKernels module_kernels = ModuleKernels::eager;   // ParallelPlan::module_kernels
  bool use_reentrant = false;                            // ParallelPlan::use_reentrant
  OptimizerKind optimizer = OptimizerKind::adam;         // ParallelPlan::optimizer
  // Layers of a stage, where Muon deals the matrices of all out to the ranks that share states.
  std::int64_t dealt_layers = 0;
  bool frozen = false;             // the model's own weights are not trained, adapters or none
  bool parallel_adapters = false;  // KernelChoices::parallel_adapters
  // Beside trained embeddings and head lie the frozen ones that they began as (PEFT's
  // ModulesToSaveWrapper).
  bool keeps_originals = false;
  // torch's own kernels sort tokens by expert (ParallelPlan::moe_permute_fusion).
  bool sorts_by_torch = false;
  bool operator==(const BlockShape&) const = default;

  [[nodiscard]] Lora lora() const {
    return {.rank = lora_rank,
            .targets = lora_targets,
            .parallel = parallel_adapters,
            .expert_copies = parallel_adapters ? ep : 0,
            .magnitudes = dora};
  }
};

// A field of BlockShape. `touches` as for plan words: `work` are the lists of forward and backward,
// `states` what lives for the whole step and the lists that run once a step.
template <class T>
struct ShapeField {
  using Value = T;
  T BlockShape::*member;
  EnumSet<Touches> touches = kAll;
  bool of_plan = true;              // the same in every block of a plan
  T ParallelPlan::*word = nullptr;  // the plan's word that it is, unchanged
};

inline constexpr std::tuple kShapeFields{
    ShapeField{.member = &BlockShape::kind, .of_plan = false},
    ShapeField{.member = &BlockShape::layer, .of_plan = false},
    ShapeField{.member = &BlockShape::micro_batch_size,
               .touches = kWork,
               .word = &ParallelPlan::micro_batch_size},
    ShapeField{.member = &BlockShape::seq_len, .touches = kWork, .word = &ParallelPlan::seq_len},
    ShapeField{.member = &BlockShape::cached, .touches = kWork},
    ShapeField{
        .member = &BlockShape::fpdt_chunk, .touches = kWork, .word = &ParallelPlan::fpdt_chunk},
    ShapeField{.member = &BlockShape::documents},
    ShapeField{.member = &BlockShape::tp, .word = &ParallelPlan::tp},
    ShapeField{.member = &BlockShape::cp, .word = &ParallelPlan::cp},
    ShapeField{.member = &BlockShape::ep, .word = &ParallelPlan::ep},
    ShapeField{.member = &BlockShape::etp, .word = &ParallelPlan::etp},
    ShapeField{.member = &BlockShape::zero},
    ShapeField{.member = &BlockShape::dense_shard},
    ShapeField{.member = &BlockShape::expert_shard},
    ShapeField{.member = &BlockShape::dense_replicas},
    ShapeField{.member = &BlockShape::expert_replicas},
    ShapeField{.member = &BlockShape::sequence_parallel, .word = &ParallelPlan::sequence_parallel},
    ShapeField{.member = &BlockShape::cp_comm, .touches = kWork, .word = &ParallelPlan::cp_comm},
    ShapeField{.member = &BlockShape::attention_backend,
               .touches = kWork,
               .word = &ParallelPlan::attention_backend},
    ShapeField{.member = &BlockShape::fp8_dot_product_attention,
               .touches = kWork,
               .word = &ParallelPlan::fp8_dot_product_attention},
    ShapeField{.member = &BlockShape::dropout, .touches = kWork, .word = &ParallelPlan::dropout},
    ShapeField{
        .member = &BlockShape::dispatcher, .touches = kWork, .word = &ParallelPlan::moe_dispatcher},
    ShapeField{.member = &BlockShape::precision, .word = &ParallelPlan::precision},
    ShapeField{.member = &BlockShape::recompute, .touches = kWork, .of_plan = false},
    ShapeField{.member = &BlockShape::recompute_modules, .touches = kWork, .of_plan = false},
    ShapeField{.member = &BlockShape::recomputes_operators, .touches = kWork, .of_plan = false},
    ShapeField{.member = &BlockShape::overlap, .touches = kWork, .word = &ParallelPlan::overlap},
    ShapeField{.member = &BlockShape::grad_dtype},
    // FSDP's gradients are in the format of its shards.
    ShapeField{.member = &BlockShape::main_params_dtype, .word = &ParallelPlan::main_params_dtype},
    ShapeField{.member = &BlockShape::moment_dtype,
               .touches = kStates,
               .word = &ParallelPlan::moment_dtype},
    ShapeField{.member = &BlockShape::optimizer_offload, .touches = kStates},
    ShapeField{.member = &BlockShape::params_offload},
    ShapeField{.member = &BlockShape::activations_offload, .touches = kWork, .of_plan = false},
    ShapeField{.member = &BlockShape::nvme, .touches = kStates},
    ShapeField{.member = &BlockShape::images, .touches = kWork, .of_plan = false},
    ShapeField{.member = &BlockShape::patches, .touches = kWork, .of_plan = false},
    ShapeField{.member = &BlockShape::tap, .touches = kWork, .of_plan = false},
    ShapeField{.member = &BlockShape::moe_load, .touches = kWork},
    ShapeField{.member = &BlockShape::moe_in_turn, .touches = kWork},
    ShapeField{.member = &BlockShape::moe_capacity, .touches = kWork},
    ShapeField{.member = &BlockShape::embedding_table},
    ShapeField{.member = &BlockShape::next, .touches = kWork, .of_plan = false},
    ShapeField{.member = &BlockShape::previous, .touches = kWork, .of_plan = false},
    ShapeField{.member = &BlockShape::fresh_gradients},
    ShapeField{.member = &BlockShape::fp8_parameters, .touches = kStates},
    ShapeField{.member = &BlockShape::narrow_copies, .touches = kStates},
    ShapeField{.member = &BlockShape::casts_both_ways, .touches = kWork},
    ShapeField{.member = &BlockShape::counts_on_host, .touches = kWork},
    ShapeField{.member = &BlockShape::fused_experts, .touches = kWork},
    ShapeField{.member = &BlockShape::deterministic, .word = &ParallelPlan::deterministic},
    ShapeField{.member = &BlockShape::gradient_accumulation_fusion,
               .touches = kWork,
               .word = &ParallelPlan::gradient_accumulation_fusion},
    ShapeField{.member = &BlockShape::loss, .word = &ParallelPlan::loss},
    ShapeField{.member = &BlockShape::sums_whole},
    ShapeField{.member = &BlockShape::sorts_by_torch, .touches = kWork},
    ShapeField{.member = &BlockShape::lora_rank, .word = &ParallelPlan::lora_rank},
    ShapeField{.member = &BlockShape::lora_targets, .word = &ParallelPlan::lora_targets},
    ShapeField{
        .member = &BlockShape::lora_dropout, .touches = kWork, .word = &ParallelPlan::lora_dropout},
    ShapeField{.member = &BlockShape::frozen_weights, .word = &ParallelPlan::frozen_weights},
    ShapeField{.member = &BlockShape::lora_a2a, .touches = kWork, .word = &ParallelPlan::lora_a2a},
    ShapeField{.member = &BlockShape::lora_dtype, .word = &ParallelPlan::lora_dtype},
    ShapeField{.member = &BlockShape::lora_embeddings, .word = &ParallelPlan::lora_embeddings},
    ShapeField{.member = &BlockShape::dora, .word = &ParallelPlan::dora},
    ShapeField{.member = &BlockShape::fp32_norms, .word = &ParallelPlan::fp32_norms},
    ShapeField{.member = &BlockShape::module_kernels,
               .touches = kWork,
               .word = &ParallelPlan::module_kernels},
    ShapeField{.member = &BlockShape::use_reentrant,
               .touches = kWork,
               .word = &ParallelPlan::use_reentrant},
    ShapeField{
        .member = &BlockShape::optimizer, .touches = kStates, .word = &ParallelPlan::optimizer},
    ShapeField{.member = &BlockShape::dealt_layers, .touches = kStates},
    ShapeField{.member = &BlockShape::frozen},
    ShapeField{.member = &BlockShape::parallel_adapters},
    ShapeField{.member = &BlockShape::keeps_originals},
};

// Calls visit(field) for each row.
template <class Visit>
constexpr void for_each_field(Visit&& visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); }, kShapeFields);
}

std::uint64_t hash_of(const BlockShape& shape);

// Whether backward makes a rank's gradients anew, because the recipe drops them after an update and
// a step has one microbatch: with several, those of the first are there when the second runs.
bool makes_fresh_gradients(const ParallelPlan& plan, const Recipe& recipe);

// Whether a rank adds up the gradients of several microbatches whole, though it keeps shards of
// parameters and states: sync_each_batch=false under FSDP.
bool sums_whole_gradients(const ParallelPlan& plan, const Recipe& recipe);

// The part of a plan that every block of it shares; kind, layer and neighbours are set per block.
// `turns_fp8`: the GPU multiplies fp8 only where the contracted side lies in rows (Hopper, Ada).
BlockShape base_shape(const ModelSpec& model, const ParallelPlan& plan, const Recipe& recipe,
                      double moe_imbalance, bool turns_fp8 = true);

// The fields that forward and backward depend on: below ZeRO-2 the sharding of states is left out,
// so that one summary serves every data-parallel degree.
BlockShape compute_shape(BlockShape shape);
// The fields that decide how large buffers of forward and backward are and how long they live. What
// is gathered and what is reduced is whole; of the ranks that share states it only matters whether
// there are several. Fresh gradients alone, which are a shard, keep its size.
BlockShape buffer_shape(BlockShape shape);
// The fields that forward's and backward's own work depends on: not what is gathered and reduced
// beside it, for the block's neighbours or for itself.
BlockShape own_work_shape(BlockShape shape);
// The fields that persistent states and the once-a-step lists depend on.
BlockShape state_shape(BlockShape shape);
// `kind`, which is a state_shape(), holding its states as the plan of `base` says.
BlockShape with_states_of(BlockShape kind, const BlockShape& base);

}  // namespace qplan
