#pragma once
// How one training step is spread over the GPUs: a plain value, printed and parsed as one line
// ("tp4 pp2 dp32 ep8 etp1 zero1 mbs2 gbs1024 seq4096 interleaved vpp4 recompute=selective").

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/dtype.h"
#include "models/enum_set.h"
#include "models/json_fwd.h"
#include "models/lora.h"
#include "models/words.h"

namespace qplan {

enum class ScheduleKind : std::uint8_t { gpipe, one_f_one_b, interleaved, zb_h1, zbv, dualpipe };

// How often a stage lives. dualpipe feeds the pipeline from both ends: pipeline ranks r and pp-1-r
// hold the same two stages, and each runs half of the microbatches. Copies are data-parallel
// copies: their gradients are summed, and what ZeRO shards is shared among the ranks of both.
constexpr int stage_copies(ScheduleKind kind) {
  return kind == ScheduleKind::dualpipe ? 2 : 1;
}

enum class CpComm : std::uint8_t { p2p, all_gather, a2a };
enum class RecomputeKind : std::uint8_t { none, selective, full };
enum class MoeDispatcher : std::uint8_t { alltoall, allgather, deepep, hybridep };
// One of the libraries that bring an exchange of their own.
constexpr bool is_dispatch_library(MoeDispatcher dispatcher) {
  return dispatcher == MoeDispatcher::deepep || dispatcher == MoeDispatcher::hybridep;
}

// Where a token's copies go. forced: to even numbers of random experts (Megatron's
// --moe-router-force-load-balancing); natural: where the router says; in_turn: token by token to
// the next experts in order (NeMo AutoModel's FakeBalancedGate, torchtitan's round-robin), so that
// neighbouring experts, and few ranks, get all copies of a token.
enum class Routing : std::uint8_t { forced, natural, in_turn };

// Which of the token copies beyond an expert's capacity are dropped: the least probable, or the
// last of the sequence (Megatron's --moe-token-drop-policy).
enum class TokenDropPolicy : std::uint8_t { probs, position };

// What CUDA graphs capture: the whole iteration; each layer but its routed experts, whose shapes
// change (Transformer Engine's graphs with Megatron's modules attn, moe_router, moe_preprocess); or
// of each layer only what stands between attention and experts (moe_router, moe_preprocess).
// mamba: of Mamba-2's layers alone.
enum class CudaGraphScope : std::uint8_t { full, layer, router, mamba };

// Which cross-entropy runs over the logits (models/program/loss.h: the passes and bytes of each).
enum class LossKind : std::uint8_t {
  by_framework,  // the one that the framework runs unasked
  eager,         // torch's operations on fp32 logits (Hugging Face, torchtitan without compile)
  narrow,        // ... on 16-bit logits as they are (LitGPT)
  unfused,       // Megatron's vocab_parallel_cross_entropy, nanotron's
  fused,         // one kernel each way over 16-bit logits (FlashAttention's, qplan's own)
  native,        // Megatron's --cross-entropy-fusion-impl native
  te,            // ... te: Transformer Engine's
  compiled,      // torch.compile's
  chunked,       // ... in parts of the tokens, head included (torchtitan's ChunkedLossWrapper)
  liger          // the same in one kernel's parts, gradients made in forward (Liger's)
};

// Which of a module's parts Hugging Face's models run as one kernel each, instead of torch's
// operation by operation: norms and rotary embeddings (fms-acceleration's fused ops and kernels,
// Unsloth's), or SwiGLU as well (Liger's, transformers' --use_liger_kernel).
enum class ModuleKernels : std::uint8_t { eager, norms, all };

// What selective recomputation drops and computes again (Megatron's --recompute-modules).
enum class RecomputeModule : std::uint8_t {
  core_attn,
  layernorm,
  mlp,
  moe,
  moe_act,
  mla_up_proj,
  shared_experts,
  gdn_norm_out  // Gated DeltaNet's gated norm
};

// Which library computes attention: the one that the framework takes by itself; FlashAttention-2;
// cuDNN (Megatron's --attention-backend, Transformer Engine's NVTE_FUSED_ATTN); or products and a
// softmax of their own, whose probabilities stay for backward.
enum class AttentionBackend : std::uint8_t { automatic, flash, fused, unfused };

enum class OverlapKind : std::uint8_t { tp, grad, param, ep };

// Which optimizer steps the weights, and so what it keeps of each beside a master copy:
//   adam       two moments (AdamW, arXiv 1711.05101)
//   adam8bit   the same in blocks of 256 numbers of 8 bits with an fp32 scale (bitsandbytes, arXiv
//              2110.02861; torchao's is as large)
//   adafactor  of a matrix its rows' and columns' mean squares, of a vector a second moment; no
//              first moment (arXiv 1804.04235, as transformers has it)
//   sgd        a momentum (Megatron's --sgd-momentum, 0.9; torch's SGD without one keeps nothing)
//   muon       a momentum of the hidden layers' matrices, which steps along its nearest orthogonal
//              matrix; Adam for embeddings, head, norms and biases (arXiv 2502.16982)
//   lion       a momentum, whose sign is the step (arXiv 2302.06675)
enum class OptimizerKind : std::uint8_t { adam, adam8bit, adafactor, sgd, muon, lion };

struct Recompute {
  RecomputeKind kind = RecomputeKind::none;
  EnumSet<RecomputeModule> modules;  // selective; empty: the recipe's default set
  int layers = 0;                    // full: first `layers` of each chunk; 0: every layer
  bool operator==(const Recompute&) const = default;
};

struct Offload {
  double optimizer = 0;       // fraction of the optimizer state and its step that live on the host
  bool params = false;        // ZeRO-Infinity style parameter offload
  int activation_layers = 0;  // layers of each chunk whose stash goes to the host; -1: all
  bool nvme = false;          // optimizer state on NVMe instead of host memory
  bool operator==(const Offload&) const = default;
};

// Degrees multiply to the world: tp*cp*dp*pp. Experts are folded: etp*ep*edp*pp is the same world.
struct ParallelPlan {
  int tp = 1;          // tensor: splits heads and MLP columns; wants NVLink
  int pp = 1;          // pipeline: splits layers into stages
  int vpp = 1;         // virtual stages (chunks) a pipeline rank holds
  int cp = 1;          // context: splits the sequence
  int ep = 1;          // expert: splits the experts, over dp*cp*tp of one stage
  int etp = 1;         // expert tensor: splits each expert
  int dp = 1;          // data: splits the batch
  int zero = 0;        // 0-3: what dp shards: nothing, optimizer, + gradients, + parameters
  int fsdp_shard = 0;  // HSDP: ranks that share one shard set; 0: all of dp*cp
  std::int64_t micro_batch_size = 1;   // sequences a rank handles at once
  std::int64_t global_batch_size = 1;  // sequences a step
  std::int64_t seq_len = 4096;
  // Tokens of a document where sequences are packed and attention stays within documents: the mean,
  // weighted by tokens. 0: a sequence is one document.
  std::int64_t document_len = 0;
  // Tokens of a sequence that attention, MLP and loss go through at once; keys, values and what
  // else waits is on the host until then (FPDT, DeepSpeed's Ulysses-Offload). 0: all of them.
  std::int64_t fpdt_chunk = 0;
  Precision precision = Precision::bf16;
  Recompute recompute;
  Offload offload;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  bool sequence_parallel = false;
  CpComm cp_comm = CpComm::p2p;
  AttentionBackend attention_backend = AttentionBackend::automatic;
  // Attention's own products take fp8 operands, too, in both passes (TransformerConfig's
  // fp8_dot_product_attention in Megatron, fp8_dpa of Transformer Engine's recipes).
  bool fp8_dot_product_attention = false;
  // Of attention's probabilities and of what attention and MLP add to the residual, a share is
  // dropped (Megatron's --attention-dropout and --hidden-dropout, 0.1 unless said).
  bool dropout = false;
  MoeDispatcher moe_dispatcher = MoeDispatcher::alltoall;
  Routing routing = Routing::forced;
  // Token copies that an expert takes of one rank's microbatch, over the mean; more are dropped
  // (Megatron's --moe-expert-capacity-factor). 0: all are taken (dropless).
  double moe_capacity_factor = 0;
  TokenDropPolicy moe_token_drop_policy = TokenDropPolicy::probs;
  // Tokens are sorted by expert, and their copies summed, by kernels of their own (Megatron's
  // --moe-permute-fusion, Transformer Engine 2.1). false: torch's index_select and scatter_add.
  bool moe_permute_fusion = true;
  // In fp8 linear layers' weights are kept in fp8 alone (Megatron's --fp8-param-gather, on in
  // Megatron-Bridge's presets). false: in 16 bits, with copies in fp8 beside them.
  bool fp8_param_gather = true;
  // The products of weight gradients add to the accumulated ones themselves. false: a kernel after
  // each does (Megatron's --no-gradient-accumulation-fusion).
  bool gradient_accumulation_fusion = true;
  // PyTorch's FSDP reduces the gradients of every microbatch. false: they are added up whole and
  // reduced with a step's last one (no_sync, set_requires_gradient_sync; accelerate's word).
  bool sync_each_batch = true;
  // Recomputed layers go through torch's reentrant checkpoints, which run a layer whole once more;
  // others stop where backward has what it needs (use_reentrant of torch.utils.checkpoint).
  bool use_reentrant = false;
  // Adapters beside frozen weights (models/lora.h). 0: none, every weight is trained.
  int lora_rank = 0;
  int lora_alpha = 32;  // their products are scaled by alpha / rank
  LoraTargets lora_targets;
  double lora_dropout = 0;  // of what adapters read, a share is dropped
  // Parallel adapters beside row-parallel layers come to the ranks' tokens by an all-to-all, not by
  // gathering all columns of all tokens (Megatron-Bridge's LoRA, a2a_experimental).
  bool lora_a2a = false;
  AdapterFormat lora_dtype = AdapterFormat::computed;
  bool lora_embeddings = false;  // embedding and head are trained beside the adapters
  bool dora = false;             // adapters have magnitudes (Lora::magnitudes)
  FrozenFormat frozen_weights = FrozenFormat::computed;
  // Norms' frozen weights are fp32, and so are, beside bitsandbytes' layers, the hidden states
  // (PEFT's prepare_model_for_kbit_training).
  bool fp32_norms = false;
  ModuleKernels module_kernels = ModuleKernels::eager;
  OptimizerKind optimizer = OptimizerKind::adam;
  DType grad_dtype = DType::fp32;         // accumulated gradients
  DType main_params_dtype = DType::fp32;  // master weights (bf16 here: a 2-byte remainder is kept)
  DType moment_dtype = DType::fp32;       // Adam's m and v, a momentum
  EnumSet<OverlapKind> overlap;
  bool cuda_graph = false;
  CudaGraphScope cuda_graph_scope = CudaGraphScope::full;
  bool compile = false;
  bool deterministic = false;  // the same bits in every run: kernels that add in a fixed order
  LossKind loss = LossKind::by_framework;
  std::vector<int> pipeline_layout;  // decoder layers of each virtual stage, in order; empty: even

  bool operator==(const ParallelPlan&) const = default;

  [[nodiscard]] Lora lora() const {
    return {.rank = lora_rank, .targets = lora_targets, .magnitudes = dora};
  }
  [[nodiscard]] std::int64_t world() const { return std::int64_t{tp} * cp * dp * pp; }
  // Expert data parallelism: what is left of one stage's ranks after etp*ep.
  [[nodiscard]] std::int64_t edp() const {
    return std::int64_t{tp} * cp * dp / (std::int64_t{etp} * ep);
  }
  [[nodiscard]] std::int64_t num_microbatches() const {
    return global_batch_size / (micro_batch_size * dp);
  }
  // Ranks that share one copy of the sharded states (dense parameters).
  [[nodiscard]] int shard_degree() const {
    if (zero == 0) return 1;
    return fsdp_shard > 0 ? fsdp_shard : dp * cp * stage_copies(schedule);
  }
  // Whether any rank has the same weights as another, so that their states can be sharded.
  [[nodiscard]] bool shares_states() const {
    return std::max<std::int64_t>(std::int64_t{dp} * cp, edp()) * stage_copies(schedule) > 1;
  }
};

// One line; words at their default are left out except tp pp dp zero mbs gbs seq and the schedule
// (when pp > 1), and where `defaults` have another value: `parse_plan(to_string(p, d), d) == p` for
// every plan.
std::string to_string(const ParallelPlan& plan, const ParallelPlan& defaults = {});

// Parses such a line on top of `defaults`. Throws Error naming the word that is wrong.
ParallelPlan parse_plan(std::string_view line, const ParallelPlan& defaults = {});

// The `plan` object of docs/reference/contract.md 4: every word, in a fixed order.
Json plan_to_json(const ParallelPlan& plan);
ParallelPlan plan_from_json(const Json& object, std::string_view path);

std::string to_string(
    const Recompute& recompute);  // "none", "selective:moe_act+layernorm", "full:4"
Recompute parse_recompute(std::string_view text);
std::string to_string(const Offload& offload);  // "none", "optimizer:0.5,activations:4"
Offload parse_offload(std::string_view text);

template <>
struct Words<ScheduleKind> {
  static constexpr std::string_view what = "schedule";
  static constexpr auto table = std::to_array<std::pair<ScheduleKind, std::string_view>>(
      {{ScheduleKind::gpipe, "gpipe"},
       {ScheduleKind::one_f_one_b, "1f1b"},
       {ScheduleKind::interleaved, "interleaved"},
       {ScheduleKind::zb_h1, "zb-h1"},
       {ScheduleKind::zbv, "zbv"},
       {ScheduleKind::dualpipe, "dualpipe"}});
};
template <>
struct Words<CpComm> {
  static constexpr std::string_view what = "cp_comm";
  static constexpr auto table = std::to_array<std::pair<CpComm, std::string_view>>(
      {{CpComm::p2p, "p2p"}, {CpComm::all_gather, "all_gather"}, {CpComm::a2a, "a2a"}});
};
template <>
struct Words<AttentionBackend> {
  static constexpr std::string_view what = "attention_backend";
  static constexpr auto table = std::to_array<std::pair<AttentionBackend, std::string_view>>(
      {{AttentionBackend::automatic, "auto"},
       {AttentionBackend::flash, "flash"},
       {AttentionBackend::fused, "fused"},
       {AttentionBackend::unfused, "unfused"}});
};
template <>
struct Words<RecomputeKind> {
  static constexpr std::string_view what = "recompute";
  static constexpr auto table = std::to_array<std::pair<RecomputeKind, std::string_view>>(
      {{RecomputeKind::none, "none"},
       {RecomputeKind::selective, "selective"},
       {RecomputeKind::full, "full"}});
};
template <>
struct Words<RecomputeModule> {
  static constexpr std::string_view what = "recompute module";
  static constexpr auto table = std::to_array<std::pair<RecomputeModule, std::string_view>>(
      {{RecomputeModule::core_attn, "core_attn"},
       {RecomputeModule::layernorm, "layernorm"},
       {RecomputeModule::mlp, "mlp"},
       {RecomputeModule::moe, "moe"},
       {RecomputeModule::moe_act, "moe_act"},
       {RecomputeModule::mla_up_proj, "mla_up_proj"},
       {RecomputeModule::shared_experts, "shared_experts"},
       {RecomputeModule::gdn_norm_out, "gdn_norm_out"}});
};
template <>
struct Words<MoeDispatcher> {
  static constexpr std::string_view what = "moe_dispatcher";
  static constexpr auto table = std::to_array<std::pair<MoeDispatcher, std::string_view>>(
      {{MoeDispatcher::alltoall, "alltoall"},
       {MoeDispatcher::allgather, "allgather"},
       {MoeDispatcher::deepep, "deepep"},
       {MoeDispatcher::hybridep, "hybridep"}});
};
template <>
struct Words<Routing> {
  static constexpr std::string_view what = "routing";
  static constexpr auto table = std::to_array<std::pair<Routing, std::string_view>>(
      {{Routing::forced, "forced"}, {Routing::natural, "natural"}, {Routing::in_turn, "in_turn"}});
};
template <>
struct Words<TokenDropPolicy> {
  static constexpr std::string_view what = "moe_token_drop_policy";
  static constexpr auto table = std::to_array<std::pair<TokenDropPolicy, std::string_view>>(
      {{TokenDropPolicy::probs, "probs"}, {TokenDropPolicy::position, "position"}});
};
template <>
struct Words<CudaGraphScope> {
  static constexpr std::string_view what = "cuda_graph_scope";
  static constexpr auto table = std::to_array<std::pair<CudaGraphScope, std::string_view>>(
      {{CudaGraphScope::full, "full"},
       {CudaGraphScope::layer, "layer"},
       {CudaGraphScope::router, "router"},
       {CudaGraphScope::mamba, "mamba"}});
};
template <>
struct Words<LossKind> {
  static constexpr std::string_view what = "loss";
  static constexpr auto table =
      std::to_array<std::pair<LossKind, std::string_view>>({{LossKind::by_framework, "default"},
                                                            {LossKind::eager, "eager"},
                                                            {LossKind::narrow, "narrow"},
                                                            {LossKind::unfused, "unfused"},
                                                            {LossKind::fused, "fused"},
                                                            {LossKind::native, "native"},
                                                            {LossKind::te, "te"},
                                                            {LossKind::compiled, "compiled"},
                                                            {LossKind::chunked, "chunked"},
                                                            {LossKind::liger, "liger"}});
};
template <>
struct Words<ModuleKernels> {
  static constexpr std::string_view what = "module_kernels";
  static constexpr auto table =
      std::to_array<std::pair<ModuleKernels, std::string_view>>({{ModuleKernels::eager, "eager"},
                                                                 {ModuleKernels::norms, "norms"},
                                                                 {ModuleKernels::all, "all"}});
};
template <>
struct Words<OptimizerKind> {
  static constexpr std::string_view what = "optimizer";
  static constexpr auto table = std::to_array<std::pair<OptimizerKind, std::string_view>>(
      {{OptimizerKind::adam, "adam"},
       {OptimizerKind::adam8bit, "adam8bit"},
       {OptimizerKind::adafactor, "adafactor"},
       {OptimizerKind::sgd, "sgd"},
       {OptimizerKind::muon, "muon"},
       {OptimizerKind::lion, "lion"}});
};
template <>
struct Words<OverlapKind> {
  static constexpr std::string_view what = "overlap";
  static constexpr std::string_view empty = "none";  // an empty set of these
  static constexpr auto table =
      std::to_array<std::pair<OverlapKind, std::string_view>>({{OverlapKind::tp, "tp"},
                                                               {OverlapKind::grad, "grad"},
                                                               {OverlapKind::param, "param"},
                                                               {OverlapKind::ep, "ep"}});
};

}  // namespace qplan
