#pragma once
// One piece of work for one rank. `Work` is the currency of the project: the price table is keyed
// by it, the microbenchmark times it, the executor runs it, the validation report compares it.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "models/dtype.h"
#include "models/plan/parallel_plan.h"
#include "models/units.h"

namespace qplan {

// Groups of ranks, Megatron's names. `embedding`: first and last stage of one pipeline (tied
// weights); `world`: every rank (gradient norm). HSDP splits dp_cp in two: `dp_shard`, consecutive
// members that share one copy of the states, and `dp_replicate`, the holders of one shard.
enum class Axis : std::uint8_t {
  tp,
  cp,
  dp,
  dp_cp,
  pp,
  etp,
  ep,
  edp,
  embedding,
  world,
  dp_shard,
  dp_replicate
};
inline constexpr int kAxisCount = 12;

enum class Pass : std::uint8_t { forward, backward };

// Who computes attention. `fused`: the fastest library kernel of the machine (cuDNN, FlashAttention
// 3 or 4); `flash2`: FlashAttention-2, which reaches half of that on Hopper; `flash1`: the first
// FlashAttention, half of flash2; `unfused`: scores are written to memory (Megatron before flash
// attention); `flex`: torch's FlexAttention, a Triton kernel; `fused_fp8`: as `fused`, with
// operands in fp8.
enum class AttentionKernel : std::uint8_t { fused, flash2, flash1, unfused, flex, fused_fp8 };

// C[m,n] = A[m,k] B[k,n], `batch` of them. `accumulate_fp32`: C is read, added to and written in
// fp32 (Megatron's main_grad). `adds`: the same in its own format (what an adapter adds to a
// layer).
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  DType dtype = DType::bf16;
  bool accumulate_fp32 = false;
  bool adds = false;
  bool operator==(const Gemm&) const = default;
};

// `groups` experts share `rows` rows of tokens. forward and dgrad: (rows/groups, k) x (k, n) each;
// wgrad (accumulate or not): k and n are the weight's sides and rows is the contracted one.
struct GroupedGemm {
  std::int64_t groups = 0, rows = 0, n = 0, k = 0;
  DType dtype = DType::bf16;
  bool weight_gradient = false;
  bool accumulate_fp32 = false;
  bool adds = false;
  bool operator==(const GroupedGemm&) const = default;
};

// Fused attention of q_len queries over kv_len keys; FLOPs of causal attention count the lower
// triangle. `window` > 0 limits each query to that many keys. More keys than queries: the first
// kv_len - q_len come from a cache (generation).
struct Attention {
  std::int64_t batch = 0, heads = 0, kv_heads = 0, q_len = 0, kv_len = 0;
  std::int64_t head_dim = 0, v_head_dim = 0, window = 0;
  bool causal = true;
  Pass pass = Pass::forward;
  AttentionKernel kernel = AttentionKernel::fused;
  bool deterministic = false;  // backward: gradients of queries are added up in a fixed order
  bool dropout = false;        // fused: probabilities are dropped, by random numbers drawn anew
  bool sinks = false;          // fused: each head has a learned logit, which gets a gradient, too
  bool latent = false;         // values are the first v_head_dim columns of the keys
  // FLOPs of the model's products beside attention's own, over a whole sequence: what else heats
  // the GPU while this runs. 0: nothing, it runs alone.
  double products = 0;
  bool operator==(const Attention&) const = default;
};

// The gated delta rule over sequences cut into chunks (arXiv 2412.06464, section 3.3): within a
// chunk products of its tokens, between chunks a state of key_dim x value_dim a value head, one
// chunk after the other.
struct GatedDeltaRule {
  std::int64_t batch = 0, seq_len = 0;  // sequences, tokens of each
  std::int64_t key_heads = 0, value_heads = 0;
  std::int64_t key_dim = 0, value_dim = 0, chunk = 64;
  Pass pass = Pass::forward;
  bool own = false;  // by our executor's kernels, in chunks of kOwnChunk tokens
  bool operator==(const GatedDeltaRule&) const = default;
};

// Mamba-2's scan over sequences cut into chunks (arXiv 2405.21060, section 6): within a chunk
// products of its tokens, between chunks a state of head_dim x state_size a head, which decays.
struct StateSpaceScan {
  std::int64_t batch = 0, seq_len = 0;  // sequences, tokens of each
  std::int64_t heads = 0, groups = 0;   // heads of a group share B and C
  std::int64_t head_dim = 0, state_size = 0, chunk = 128;
  bool gated = false;  // its output times the SiLU of a gate, in the same kernel
  Pass pass = Pass::forward;
  bool own = false;  // by our executor's kernels, in chunks of kOwnChunk tokens
  bool operator==(const StateSpaceScan&) const = default;
};

// Of the two, what our executor's kernels set aside, forward and backward: numbers of 2 bytes for
// each token of sequences that are made whole chunks (kernels/recurrent.h).
inline constexpr std::int64_t kOwnChunk = 64;
struct OwnScratch {
  std::int64_t rows = 0, cols = 0;
};
OwnScratch own_scratch(const GatedDeltaRule& work);
OwnScratch own_scratch(const StateSpaceScan& work);

// Memory-bound work over a (rows, cols) array.
enum class RowwiseKind : std::uint8_t {
  rms_norm,
  rms_norm_backward,
  layer_norm,
  layer_norm_backward,
  rope,
  rope_backward,
  swiglu,           // also attention's output times the sigmoid of its gate
  swiglu_backward,  // cols: the MLP width f (input 2f)
  halves_swiglu,
  halves_swiglu_backward,  // as swiglu, kernel by kernel, of halves that lie side by side in a row
  gelu,
  gelu_backward,  // also relu2
  add,            // residual
  accumulate,     // a 16-bit gradient into the sum of those before it, whose dtype this is
  dropout_add,
  dropout_add_backward,
  embedding,
  embedding_backward,
  router,
  router_backward,  // softmax or sigmoid, top-k, auxiliary loss; cols: experts
  permute,
  unpermute,   // rows: token copies, cols: hidden
  group_rows,  // copies of several sources by expert, or back
  expert_bias,
  expert_bias_backward,  // of the down projection, times the router's probability
  clamp,
  clamp_backward,  // of both halves of an activation's input; cols: one half
  scale_rows,
  scale_rows_backward,  // rows times a number each, which gets a gradient
  weigh_rows,
  weigh_rows_backward,  // the same in 16 bits, by torch's kernels, under a sum over a token's
                        // copies
  index_put,            // rows added to those of an index (the gradient of a lookup)
  causal_conv,
  causal_conv_backward,  // a short convolution of each channel over its last tokens, and SiLU
  l2_norm,
  l2_norm_backward,  // of a head's queries and keys
  gated_norm,
  gated_norm_backward,  // RMSNorm, times the SiLU of a gate
  decay_gates,
  decay_gates_backward,  // Gated DeltaNet's decay and strength; cols: value heads
  mamba_conv,
  mamba_conv_backward,  // Mamba-2's convolution, as causal_conv, by another library
  group_norm,
  gated_group_norm,
  group_norm_backward,  // RMSNorm of each group of columns; gated: of them times a gate's SiLU
  cross_entropy,
  cross_entropy_backward,  // rows: tokens, cols: this rank's vocabulary
  cast,                    // to fp8 and its transpose
  amax,                    // the scale of an array that becomes fp8
  quantize,                // to fp8 by its scale, as it lies or transposed
  dequantize,              // of frozen weights in few bits
  copy,
  chunk_cat,    // 16-bit gradients side by side, as a reduction of that dtype takes them (FSDP2)
  masked_fill,  // rows that nobody counted become zeros, in place
  zero_fill,
  sum_of_squares,  // gradient norm: one read
  scale            // unscale, clip, add into: read and write
};

struct Rowwise {
  RowwiseKind kind = RowwiseKind::copy;
  std::int64_t rows = 0, cols = 0;
  DType dtype = DType::bf16;
  bool fused = true;        // false: the framework runs it as several elementwise kernels
  std::int64_t groups = 1;  // experts whose rows are worked on one after the other
  std::int64_t chain = 0;   // index_put: rows that one sum adds, one after the other
  bool operator==(const Rowwise&) const = default;
};

enum class CollectiveKind : std::uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast
};

// `bytes` is the full, unsharded buffer of one rank's view (nccl-tests' S): for all_gather the
// gathered result, for reduce_scatter the input, for all_to_all what a rank holds before (and
// after).
struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  Axis axis = Axis::tp;
  Bytes bytes;
  bool expert_parallel_library = false;  // DeepEP or HybridEP kernels instead of NCCL
  double rank_share = 0;    // of such a library: ranks that a token goes to / ranks; 0: not known
  bool neighbours = false;  // those ranks are side by side, not anywhere
  // Routing limited to groups (DeepSeek-V3, arXiv 2412.19437, 2.1.2): the ranks are cut into so
  // many groups of neighbours, and a token's copies keep to so many of them.
  std::int64_t groups = 1, groups_of_token = 1;
  double calls = 1;  // of NCCL that these bytes are cut into; 0: part of another op's call
  bool operator==(const Collective&) const = default;
};

// To or from a neighbour on `axis`: pp (stage boundary) or cp (ring step).
struct SendRecv {
  Axis axis = Axis::pp;
  Bytes bytes;
  bool operator==(const SendRecv&) const = default;
};

// An optimizer's step over this rank's shard, element by element: reads the gradient, updates
// master weight and states, writes the working copy. Sizes are of one element.
struct Update {
  std::int64_t params = 0;
  DType grad = DType::fp32, main_params = DType::fp32, moments = DType::fp32, working = DType::bf16;
  bool fused = true;
  OptimizerKind optimizer = OptimizerKind::adam;
  std::int64_t factors = 0;  // Adafactor: numbers of the second moments, rows' and columns'
  std::int64_t tensors = 1;  // that kernels go through one after the other; 1: lists of them
  // Gradients of all parameters become one flat array, and that one in fp32, before it begins.
  bool flattens = false;
  bool operator==(const Update&) const = default;
};

// Muon's step of matrices that are alike: gradients into the momentum, Newton-Schulz iterations of
// whole matrices, and what they give onto the weights.
struct Muon {
  std::int64_t rows = 0, cols = 0;  // of one matrix, whole
  // That this rank orthogonalises. Not a whole number where the matrices of several layers are
  // dealt out to the ranks that share states: the mean of a layer.
  double matrices = 1;
  std::int64_t params = 0;  // elements that it steps: its own share of them
  DType grad = DType::fp32, main_params = DType::fp32, moments = DType::fp32, working = DType::bf16;
  bool operator==(const Muon&) const = default;
};
// A quintic iteration takes three products (X X^T, its square, and that times X): Newton-Schulz as
// Muon has it (Keller Jordan's muon.py, DeepSpeed edaa7221, deepspeed/runtime/zero/muon).
inline constexpr int kNewtonSchulzSteps = 5;
// Of one matrix and iteration, in bf16.
std::array<Gemm, 3> newton_schulz_products(const Muon& work);
// What iterations of one matrix hold: X and its successor, the small product and its square.
Bytes newton_schulz_bytes(const Muon& work);

struct HostCopy {
  Bytes bytes;
  bool to_host = true;
  bool operator==(const HostCopy&) const = default;
};

// AdamW on the host's cores (offloaded optimizer); `nvme`: the state streams from and to NVMe.
struct HostAdam {
  std::int64_t params = 0;
  bool nvme = false;
  DType grad = DType::fp32, main_params = DType::fp32, moments = DType::fp32;
  DType working = DType::bf16;  // of the copy that it writes; as main_params: it writes none
  bool fused = true;            // one pass, or one for each of torch's operations
  bool casts_apart = false;     // the working copy is made by a pass of its own
  int clipping = 0;             // how often gradients are read or written besides, to be clipped
  bool operator==(const HostAdam&) const = default;
};

// Takes no time; carries pure waits between streams (and host-device synchronisation).
struct Join {
  bool operator==(const Join&) const = default;
};

using Work = std::variant<Gemm, GroupedGemm, Attention, Rowwise, Collective, SendRecv, Update,
                          HostCopy, HostAdam, Join, GatedDeltaRule, StateSpaceScan, Muon>;

// FLOPs a work executes: multiply and add are two; memory-bound work counts none. Fused attention
// backward recomputes the scores: 2.5 times the forward.
Flops flops(const Work& work);

// What of the delta rule's kernels goes on side by side, a chunk and head each, and what goes
// through the chunks of a sequence one after the other.
struct DeltaRuleParts {
  Flops within_flops, between_flops;
  Bytes within_traffic, between_traffic;
};
DeltaRuleParts parts_of(const GatedDeltaRule& work);

// The same of a scan: products and what every kernel moves, and the bytes of the one kernel that
// takes the states of a sequence's chunks one after the other.
struct ScanParts {
  Flops flops;
  Bytes traffic, passing_traffic;
};
ScanParts parts_of(const StateSpaceScan& work);

// FLOPs by Megatron's MFU convention: as flops(), but attention backward counts 2 times the
// forward, and the gated delta rule four products of a token with the state, whatever its chunks
// cost (training.py, num_floating_point_operations). A scan counts seven of a token with the state,
// multiply or add, its chunks apart.
Flops model_flops(const Work& work);

// Bytes of device memory that a memory-bound work reads and writes (docs/reference/physics.md 1.6).
Bytes memory_traffic(const Rowwise& work);
Bytes memory_traffic(const Update& work);
Bytes memory_traffic(const Muon& work);  // but for its products
// Of the host's memory.
Bytes memory_traffic(const HostAdam& work);
// What lies on the host between steps: main weights and moments.
Bytes state_bytes(const HostAdam& work);

// What an optimizer keeps of the elements that it steps, besides a master copy.
Bytes state_bytes(const Update& work);
Bytes state_bytes(const Muon& work);

// Kernels a work launches, one after the other.
int kernel_count(const Rowwise& work);
double kernel_count(const Update& work);
double kernel_count(const Muon& work);
int kernel_count(const GatedDeltaRule& work);
int kernel_count(const StateSpaceScan& work);

// Whether written-out scores get mask and softmax from one kernel. Megatron's takes blocks of four
// heads and lengths in fours (fused_softmax.py, is_kernel_available); otherwise torch casts to
// fp32, scales, masks, normalises and casts back, a kernel each.
bool fused_softmax(const Attention& a);

// Bytes of the keys and values that attention reads, each number of `element` bytes.
Bytes key_value_bytes(const Attention& work, double element = 2);

// (query, key) pairs that attention scores, each causal diagonal counted half.
double score_pairs(const Attention& work);

std::string_view kind_name(const Work& work);  // "gemm", "all_gather", "rms_norm", ...
std::string to_string(const Work& work);       // "gemm 4096x8192x2048 bf16"
std::uint64_t hash_of(const Work& work);

template <>
struct Words<Axis> {
  static constexpr std::string_view what = "axis";
  static constexpr std::array<std::pair<Axis, std::string_view>, kAxisCount> table{
      {{Axis::tp, "tp"},
       {Axis::cp, "cp"},
       {Axis::dp, "dp"},
       {Axis::dp_cp, "dp_cp"},
       {Axis::pp, "pp"},
       {Axis::etp, "etp"},
       {Axis::ep, "ep"},
       {Axis::edp, "edp"},
       {Axis::embedding, "embedding"},
       {Axis::world, "world"},
       {Axis::dp_shard, "dp_shard"},
       {Axis::dp_replicate, "dp_replicate"}}};
};
template <>
struct Words<CollectiveKind> {
  static constexpr std::string_view what = "collective";
  static constexpr auto table = std::to_array<std::pair<CollectiveKind, std::string_view>>(
      {{CollectiveKind::all_reduce, "all_reduce"},
       {CollectiveKind::all_gather, "all_gather"},
       {CollectiveKind::reduce_scatter, "reduce_scatter"},
       {CollectiveKind::all_to_all, "all_to_all"},
       {CollectiveKind::broadcast, "broadcast"}});
};
template <>
struct Words<RowwiseKind> {
  static constexpr std::string_view what = "memory-bound kind";
  static constexpr auto table = std::to_array<std::pair<RowwiseKind, std::string_view>>(
      {{RowwiseKind::rms_norm, "rms_norm"},
       {RowwiseKind::rms_norm_backward, "rms_norm_backward"},
       {RowwiseKind::layer_norm, "layer_norm"},
       {RowwiseKind::layer_norm_backward, "layer_norm_backward"},
       {RowwiseKind::rope, "rope"},
       {RowwiseKind::rope_backward, "rope_backward"},
       {RowwiseKind::swiglu, "swiglu"},
       {RowwiseKind::swiglu_backward, "swiglu_backward"},
       {RowwiseKind::halves_swiglu, "halves_swiglu"},
       {RowwiseKind::halves_swiglu_backward, "halves_swiglu_backward"},
       {RowwiseKind::gelu, "gelu"},
       {RowwiseKind::gelu_backward, "gelu_backward"},
       {RowwiseKind::add, "add"},
       {RowwiseKind::accumulate, "accumulate"},
       {RowwiseKind::dropout_add, "dropout_add"},
       {RowwiseKind::dropout_add_backward, "dropout_add_backward"},
       {RowwiseKind::embedding, "embedding"},
       {RowwiseKind::embedding_backward, "embedding_backward"},
       {RowwiseKind::router, "router"},
       {RowwiseKind::router_backward, "router_backward"},
       {RowwiseKind::permute, "permute"},
       {RowwiseKind::unpermute, "unpermute"},
       {RowwiseKind::group_rows, "group_rows"},
       {RowwiseKind::expert_bias, "expert_bias"},
       {RowwiseKind::expert_bias_backward, "expert_bias_backward"},
       {RowwiseKind::clamp, "clamp"},
       {RowwiseKind::clamp_backward, "clamp_backward"},
       {RowwiseKind::scale_rows, "scale_rows"},
       {RowwiseKind::scale_rows_backward, "scale_rows_backward"},
       {RowwiseKind::weigh_rows, "weigh_rows"},
       {RowwiseKind::weigh_rows_backward, "weigh_rows_backward"},
       {RowwiseKind::index_put, "index_put"},
       {RowwiseKind::causal_conv, "causal_conv"},
       {RowwiseKind::causal_conv_backward, "causal_conv_backward"},
       {RowwiseKind::l2_norm, "l2_norm"},
       {RowwiseKind::l2_norm_backward, "l2_norm_backward"},
       {RowwiseKind::gated_norm, "gated_norm"},
       {RowwiseKind::gated_norm_backward, "gated_norm_backward"},
       {RowwiseKind::decay_gates, "decay_gates"},
       {RowwiseKind::decay_gates_backward, "decay_gates_backward"},
       {RowwiseKind::mamba_conv, "mamba_conv"},
       {RowwiseKind::mamba_conv_backward, "mamba_conv_backward"},
       {RowwiseKind::group_norm, "group_norm"},
       {RowwiseKind::gated_group_norm, "gated_group_norm"},
       {RowwiseKind::group_norm_backward, "group_norm_backward"},
       {RowwiseKind::cross_entropy, "cross_entropy"},
       {RowwiseKind::cross_entropy_backward, "cross_entropy_backward"},
       {RowwiseKind::cast, "cast"},
       {RowwiseKind::amax, "amax"},
       {RowwiseKind::quantize, "quantize"},
       {RowwiseKind::dequantize, "dequantize"},
       {RowwiseKind::copy, "copy"},
       {RowwiseKind::chunk_cat, "chunk_cat"},
       {RowwiseKind::masked_fill, "masked_fill"},
       {RowwiseKind::zero_fill, "zero_fill"},
       {RowwiseKind::sum_of_squares, "sum_of_squares"},
       {RowwiseKind::scale, "scale"}});
};

}  // namespace qplan
