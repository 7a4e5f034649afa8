// The key of every memo: what a block depends on, and which parts of it forward and states need.

#include <algorithm>
#include <type_traits>

#include "models/program/blocks.h"
#include "models/program/fp8_parameters.h"

namespace qplan {

bool gathers_parameters(const Recipe& recipe, int zero) {
  return zero == 3 || (recipe.shard_style == ShardStyle::fully_sharded && zero == 2);
}

bool widens_gradients(const Recipe& recipe, const BlockShape& shape) {
  return recipe.widens_gradients && shape.zero < 2 && shape.grad_dtype == DType::fp32 &&
         shape.precision != Precision::fp32;
}

bool may_keep_fp8_parameters(const ParallelPlan& plan, const Recipe& recipe) {
  const bool fp8 = plan.precision == Precision::fp8 || plan.precision == Precision::mxfp8;
  return recipe.fp8_parameters && fp8 && plan.zero >= 1 && plan.offload.optimizer == 0;
}

bool keeps_fp8_parameters(const ParallelPlan& plan, const Recipe& recipe) {
  return plan.fp8_param_gather && may_keep_fp8_parameters(plan, recipe);
}

int sharding_in_blocks(const ParallelPlan& plan, const Recipe& recipe) {
  const bool once = recipe.gathers_once_in_pipeline && plan.pp > 1;
  return once ? std::min(plan.zero, 1) : plan.zero;
}

namespace {

// Other recipes' tied heads on one stage are priced without a second set of states.
EmbeddingTable embedding_table(const ModelSpec& model, const ParallelPlan& plan,
                               const Recipe& recipe) {
  if (!model.tie_word_embeddings && model.num_mtp_layers == 0) return EmbeddingTable::own;
  const bool both_ends =
      plan.pp == 1 || plan.schedule == ScheduleKind::zbv || plan.schedule == ScheduleKind::dualpipe;
  if (both_ends && (recipe.executable || model.num_mtp_layers > 0)) return EmbeddingTable::shared;
  return plan.pp > 1 ? EmbeddingTable::copied : EmbeddingTable::own;
}

// Scores that are written out are those of the whole sequence, masked.
std::int64_t documents_of(const ParallelPlan& plan, const Recipe& recipe) {
  if (plan.document_len == 0 || recipe.attention == AttentionKernel::unfused) return 1;
  const std::int64_t rounded = (plan.seq_len + plan.document_len / 2) / plan.document_len;
  return std::clamp<std::int64_t>(rounded, 1, std::max<std::int64_t>(plan.seq_len / plan.cp, 1));
}

// Transformer Engine casts a weight of 16 bits with a step's first microbatch and keeps the copy
// for the others, from then on for good (TransformerEngineBaseModule.get_weight_workspace in
// module/base.py, v2.12; Linear's weight1_fp8 and weight1_t_fp8 until v1.8): in rows for forward,
// and for the input's gradient turned where products need that (Float8TensorStorage.update_usage)
// or scaled along the other side (MXFP8, NVFP4). Megatron says which microbatch is the first
// (is_first_microbatch in core/extensions/transformer_engine.py). NVFP4's weights are taken for
// 16 bits all told: kept in fp4 alone they are 0.9 bytes a parameter less (fp4_param_gather).
int narrow_copies(const ParallelPlan& plan, const Recipe& recipe, bool turns_fp8) {
  const bool fp8 = plan.precision == Precision::fp8 || plan.precision == Precision::mxfp8;
  if (!recipe.fp8_parameters || !fp8 || keeps_fp8_parameters(plan, recipe)) return 0;
  return turns_fp8 || plan.precision == Precision::mxfp8 ? 2 : 1;
}

}  // namespace

BlockShape base_shape(const ModelSpec& model, const ParallelPlan& plan, const Recipe& recipe,
                      double moe_imbalance, bool turns_fp8) {
  BlockShape s;
  s.micro_batch_size = plan.micro_batch_size;
  s.seq_len = plan.seq_len;
  s.documents = documents_of(plan, recipe);
  s.tp = plan.tp;
  s.cp = plan.cp;
  s.ep = plan.ep;
  s.etp = plan.etp;
  const int copies = stage_copies(plan.schedule);
  const int group = plan.dp * plan.cp * copies;
  const auto expert_group = static_cast<int>(plan.edp()) * copies;
  s.zero = sharding_in_blocks(plan, recipe);
  s.dense_shard = plan.shard_degree();
  s.dense_replicas = group / s.dense_shard;
  s.expert_shard = s.zero == 0 ? 1 : expert_group;
  s.expert_replicas = expert_group / s.expert_shard;
  s.sequence_parallel = plan.sequence_parallel;
  s.cp_comm = plan.cp_comm;
  s.attention_backend = plan.attention_backend;
  s.dropout = plan.dropout;
  s.dispatcher = plan.moe_dispatcher;
  s.precision = plan.precision;
  s.overlap = plan.overlap;
  s.grad_dtype = plan.precision == Precision::fp16 ? DType::fp16 : plan.grad_dtype;
  s.main_params_dtype = plan.main_params_dtype;
  s.moment_dtype = plan.moment_dtype;
  s.optimizer_offload = plan.offload.optimizer;
  s.params_offload = plan.offload.params;
  s.nvme = plan.offload.nvme;
  s.recompute = plan.recompute.kind;
  s.recompute_modules = plan.recompute.modules.empty() ? recipe.selective : plan.recompute.modules;
  if (s.recompute != RecomputeKind::selective) s.recompute_modules = {};
  s.recomputes_operators = s.recompute == RecomputeKind::selective && s.recompute_modules.empty() &&
                           recipe.recomputes_operators;
  // One rank with all the experts gets every token copy, whichever expert it is for.
  const bool uneven = model.moe && plan.ep > 1 && plan.routing == Routing::natural;
  s.moe_load = uneven ? moe_imbalance : 1.0;
  s.moe_in_turn = model.moe && plan.routing == Routing::in_turn;
  s.moe_capacity = model.moe ? plan.moe_capacity_factor : 0;
  // With several microbatches the gradients of the first are there when the second runs forward.
  s.fresh_gradients = recipe.drops_gradients && s.zero >= 2 && plan.num_microbatches() == 1;
  // A weight in fp8 and its transposed copy, where products need one, are as large as a weight in
  // bf16; MXFP8 always has both, for its blocks lie along one side.
  // Megatron wants a distributed optimizer for it, all on the GPU (training/arguments.py).
  s.fp8_parameters =
      keeps_fp8_parameters(plan, recipe) && plan.precision == Precision::fp8 && !turns_fp8;
  s.narrow_copies = static_cast<std::uint8_t>(narrow_copies(plan, recipe, turns_fp8));
  s.deterministic = plan.deterministic;
  s.loss = plan.loss;
  // HybridEP's own kernels sort (hybrid_ep_dispatch in Megatron's token_dispatcher.py).
  s.sorts_by_torch =
      model.moe && !plan.moe_permute_fusion && plan.moe_dispatcher != MoeDispatcher::hybridep;
  s.embedding_table = embedding_table(model, plan, recipe);
  // Megatron's dispatchers all copy token counts to the host for the experts' products: alltoall
  // and allgather with a blocking copy, DeepEP and HybridEP by spinning on pinned memory. Not in a
  // graph of the whole iteration, and not where a capacity fixes the counts.
  const bool whole_graph = plan.cuda_graph && plan.cuda_graph_scope == CudaGraphScope::full;
  s.counts_on_host =
      model.moe && recipe.moe_host_sync && !whole_graph && plan.moe_capacity_factor == 0;
  // Dropless experts in a graph of the whole iteration need products that read their row counts on
  // the device; in MXFP8 Megatron's are the CuTe DSL kernels with the activation and quantisation
  // in the epilogue (Megatron-Bridge pull request 4249, releases from 26.06 on). GPT-OSS has them
  // as well, biases and clamps in them (cutedsl_fused_grouped_mlp in Megatron-Bridge v0.5.0; issue
  // 256 of cudnn-frontend is about its grouped_gemm_dglu_dbias).
  s.fused_experts = model.moe && recipe.one_product_per_expert && whole_graph &&
                    plan.precision == Precision::mxfp8 &&
                    plan.moe_dispatcher == MoeDispatcher::hybridep;
  return s;
}

std::uint64_t hash_of(const BlockShape& s) {
  std::uint64_t hash = 1469598103934665603ULL;  // FNV-1a over the fields
  const auto mix = [&hash](auto value) {
    std::uint64_t bits = 0;
    if constexpr (std::is_floating_point_v<decltype(value)>) {
      bits = static_cast<std::uint64_t>(value * 1e6);
    } else {
      bits = static_cast<std::uint64_t>(value);
    }
    hash = (hash ^ bits) * 1099511628211ULL;
    hash ^= hash >> 29;
  };
  mix(s.kind);
  mix(static_cast<int>(s.layer.moe) + 2 * static_cast<int>(s.layer.mixer) +
      8 * static_cast<int>(s.layer.mlp) + 16 * static_cast<int>(s.layer.rotates));
  mix(s.layer.window);
  mix(s.layer.chunk);
  mix(s.micro_batch_size);
  mix(s.seq_len);
  mix(s.documents);
  mix((s.tp * 4096 + s.cp) * std::int64_t{4096});
  mix((s.ep * 4096 + s.etp) * std::int64_t{4096} + s.zero);
  mix(s.dense_shard * std::int64_t{1000003} + s.expert_shard);
  mix(s.dense_replicas * std::int64_t{1000003} + s.expert_replicas);
  mix(static_cast<int>(s.sequence_parallel) + 2 * static_cast<int>(s.cp_comm) +
      8 * static_cast<int>(s.dispatcher) + 32 * static_cast<int>(s.precision) +
      256 * static_cast<int>(s.recompute));
  mix(s.recompute_modules.bits * 65536U + s.overlap.bits);
  mix(static_cast<int>(s.grad_dtype) + 16 * static_cast<int>(s.main_params_dtype) +
      256 * static_cast<int>(s.moment_dtype));
  mix(s.optimizer_offload);
  mix(static_cast<int>(s.params_offload) + 2 * static_cast<int>(s.activations_offload) +
      4 * static_cast<int>(s.nvme) + 8 * static_cast<int>(s.fresh_gradients) +
      16 * static_cast<int>(s.counts_on_host) + 32 * static_cast<int>(s.fused_experts) +
      64 * static_cast<int>(s.embedding_table) + 512 * static_cast<int>(s.moe_in_turn) +
      1024 * static_cast<int>(s.recomputes_operators) + 2048 * static_cast<int>(s.fp8_parameters) +
      4096 * static_cast<int>(s.deterministic) + 8192 * static_cast<int>(s.sorts_by_torch) +
      16384 * static_cast<int>(s.dropout) + 32768 * static_cast<int>(s.attention_backend) +
      131072 * static_cast<int>(s.loss));
  mix(s.narrow_copies);
  mix(s.moe_load);
  mix(s.moe_capacity);
  mix((s.images * 65536 + s.patches) * 256 + s.tap + 1);
  mix(s.next.dense);
  mix(s.next.expert);
  mix(s.previous.dense);
  mix(s.previous.expert);
  return hash;
}

BlockShape compute_shape(BlockShape s) {
  if (s.zero < 2) {
    s.dense_shard = s.expert_shard = s.dense_replicas = s.expert_replicas = 1;
    s.zero = 0;
  }
  s.optimizer_offload = 0;
  s.fp8_parameters = false;
  s.narrow_copies = 0;
  s.nvme = false;
  s.moment_dtype = s.main_params_dtype = DType::fp32;
  s.overlap.remove(OverlapKind::ep);
  // From ZeRO-2 on, reductions (and gathers) are part of forward and backward.
  if (s.zero < 2) s.overlap.remove(OverlapKind::grad).remove(OverlapKind::param);
  return s;
}

BlockShape buffer_shape(BlockShape s) {
  s = compute_shape(s);
  if (s.fresh_gradients) return s;
  const auto several = [](int ranks) { return std::min(ranks, 2); };
  // Copies are summed right after shards are reduced, on the same stream.
  s.dense_replicas = s.dense_shard > 1 ? 1 : several(s.dense_replicas);
  s.dense_shard = several(s.dense_shard);
  s.expert_shard = several(s.expert_shard);
  s.expert_replicas = 1;
  return s;
}

BlockShape own_work_shape(BlockShape s) {
  s.fresh_gradients = false;
  s = buffer_shape(s);
  s.next = s.previous = {};
  return s;
}

BlockShape state_shape(BlockShape s) {
  s.micro_batch_size = 1;
  s.seq_len = 1;
  s.cp_comm = CpComm::p2p;
  s.attention_backend = AttentionBackend::automatic;
  s.dropout = false;
  s.dispatcher = MoeDispatcher::alltoall;
  s.recompute = RecomputeKind::none;
  s.recompute_modules = {};
  s.recomputes_operators = false;
  s.activations_offload = false;
  s.counts_on_host = false;
  s.fused_experts = false;
  s.sorts_by_torch = false;
  s.moe_load = 1;
  s.moe_in_turn = false;
  s.moe_capacity = 0;
  s.images = s.patches = 0;
  s.tap = -1;
  s.layer.window = s.layer.chunk = 0;
  s.overlap = {};
  s.next = s.previous = {};
  return s;
}

}  // namespace qplan
