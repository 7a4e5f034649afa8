#include "models/program/block_shape.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "models/hash.h"
#include "models/program/blocks.h"
#include "models/program/fp8_parameters.h"

namespace qplan {

bool gathers_parameters(const Recipe& recipe, int zero) {
  return zero == 3 || (recipe.states.shard_style == ShardStyle::fully_sharded && zero == 2);
}

namespace {

DType kept_gradients(const ParallelPlan& plan) {
  return plan.precision == Precision::fp16 ? DType::fp16 : plan.grad_dtype;
}

bool widens(const Recipe& recipe, int zero, DType kept, Precision precision) {
  return recipe.states.widens_gradients && zero < 2 && kept == DType::fp32 &&
         precision != Precision::fp32;
}

}  // namespace

bool widens_gradients(const Recipe& recipe, const BlockShape& shape) {
  return widens(recipe, shape.zero, shape.grad_dtype, shape.precision);
}

bool may_keep_fp8_parameters(const ParallelPlan& plan, const Recipe& recipe) {
  const bool fp8 = plan.precision == Precision::fp8 || plan.precision == Precision::mxfp8;
  return recipe.states.fp8_parameters && fp8 && plan.zero >= 1 && plan.offload.optimizer == 0;
}

bool keeps_fp8_parameters(const ParallelPlan& plan, const Recipe& recipe) {
  return plan.fp8_param_gather && may_keep_fp8_parameters(plan, recipe);
}

int sharding_in_blocks(const ParallelPlan& plan, const Recipe& recipe) {
  const bool once = recipe.states.gathers_once_in_pipeline && plan.pp > 1;
  const bool alone = recipe.states.alone_as_zero1 && !plan.shares_states();
  return once || alone ? std::min(plan.zero, 1) : plan.zero;
}

bool makes_fresh_gradients(const ParallelPlan& plan, const Recipe& recipe) {
  if (!recipe.states.drops_gradients || plan.num_microbatches() > 1) return false;
  // DeepSpeed's stages 1 and 2 let go of what they flatten, but for sums in fp32; stage 3 has a
  // buffer of its share for good (grad_partitions_flat_buffer in its zero/stage3.py).
  if (recipe.states.flattens_gradients) {
    return plan.zero < 3 && !widens(recipe, plan.zero, kept_gradients(plan), plan.precision);
  }
  // Sharded ones are reduced and gone with each block; whole ones are torch's own (DDP).
  return sharding_in_blocks(plan, recipe) >= 2 || recipe.states.updates_working_weights;
}

bool sums_whole_gradients(const ParallelPlan& plan, const Recipe& recipe) {
  return !plan.sync_each_batch && plan.num_microbatches() > 1 && kTorch.has(recipe.kind) &&
         sharding_in_blocks(plan, recipe) >= 2;
}

namespace {

// Other recipes' tied heads on one stage are priced without a second set of states.
EmbeddingTable embedding_table(const ModelSpec& model, const ParallelPlan& plan,
                               const Recipe& recipe) {
  if (!model.tie_word_embeddings && model.num_mtp_layers == 0) return EmbeddingTable::own;
  const bool both_ends =
      plan.pp == 1 || plan.schedule == ScheduleKind::zbv || plan.schedule == ScheduleKind::dualpipe;
  if (both_ends && (recipe.states.shares_tied_table || model.num_mtp_layers > 0))
    return EmbeddingTable::shared;
  return plan.pp > 1 ? EmbeddingTable::copied : EmbeddingTable::own;
}

// Scores that are written out are those of the whole sequence, masked.
std::int64_t documents_of(const ParallelPlan& plan, const Recipe& recipe) {
  if (plan.document_len == 0 || recipe.kernels.attention == AttentionKernel::unfused) return 1;
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
  if (!recipe.states.fp8_parameters || !fp8 || keeps_fp8_parameters(plan, recipe)) return 0;
  return turns_fp8 || plan.precision == Precision::mxfp8 ? 2 : 1;
}

}  // namespace

BlockShape base_shape(const ModelSpec& model, const ParallelPlan& plan, const Recipe& recipe,
                      double moe_imbalance, bool turns_fp8) {
  BlockShape s;
  for_each_field([&](const auto& field) {
    if (field.word != nullptr) s.*field.member = plan.*field.word;
  });
  s.documents = documents_of(plan, recipe);
  const int copies = stage_copies(plan.schedule);
  const int group = plan.dp * plan.cp * copies;
  const auto expert_group = static_cast<int>(plan.edp()) * copies;
  s.zero = sharding_in_blocks(plan, recipe);
  s.dense_shard = plan.shard_degree();
  s.dense_replicas = group / s.dense_shard;
  s.expert_shard = s.zero == 0 ? 1 : expert_group;
  s.expert_replicas = expert_group / s.expert_shard;
  s.frozen = plan.lora_rank > 0;
  s.parallel_adapters = s.frozen && recipe.kernels.parallel_adapters;
  s.keeps_originals = s.frozen && s.lora_embeddings && kHuggingFace.has(recipe.kind);
  s.grad_dtype = kept_gradients(plan);
  s.optimizer_offload = plan.offload.optimizer;
  s.params_offload = plan.offload.params;
  s.nvme = plan.offload.nvme;
  if (plan.optimizer == OptimizerKind::muon && plan.zero > 0) {
    s.dealt_layers = ceil_div(model.num_layers, plan.pp);
  }
  s.recompute = plan.recompute.kind;
  s.recompute_modules =
      plan.recompute.modules.empty() ? recipe.keeps.selective : plan.recompute.modules;
  if (s.recompute != RecomputeKind::selective) s.recompute_modules = {};
  s.recomputes_operators = s.recompute == RecomputeKind::selective && s.recompute_modules.empty() &&
                           recipe.keeps.recomputes_operators;
  // One rank with all the experts gets every token copy, whichever expert it is for.
  const bool uneven = model.moe && plan.ep > 1 && plan.routing == Routing::natural;
  s.moe_load = uneven ? moe_imbalance : 1.0;
  s.moe_in_turn = model.moe && plan.routing == Routing::in_turn;
  s.moe_capacity = model.moe ? plan.moe_capacity_factor : 0;
  s.fresh_gradients = makes_fresh_gradients(plan, recipe);
  s.sums_whole = sums_whole_gradients(plan, recipe);
  // A weight in fp8 and its transposed copy, where products need one, are as large as a weight in
  // bf16; MXFP8 always has both, for its blocks lie along one side.
  // Megatron wants a distributed optimizer for it, all on the GPU (training/arguments.py).
  s.fp8_parameters =
      keeps_fp8_parameters(plan, recipe) && plan.precision == Precision::fp8 && !turns_fp8;
  s.narrow_copies = static_cast<std::uint8_t>(narrow_copies(plan, recipe, turns_fp8));
  // Transformer Engine's quantizers write a second copy for a weight's gradient where there is one
  // (set_usage(columnwise=...) in module/linear.py) and it cannot be read from the first: tensors
  // with one scale can, where products take fp8 either way (Float8Quantizer::create_tensor in
  // pytorch/csrc/quantizer.cpp, d0067d0d); blocks of MXFP8 and NVFP4 lie along one side.
  s.casts_both_ways = !s.frozen && (turns_fp8 || plan.precision != Precision::fp8);
  // HybridEP's own kernels sort (hybrid_ep_dispatch in Megatron's token_dispatcher.py).
  s.sorts_by_torch =
      model.moe && !plan.moe_permute_fusion && plan.moe_dispatcher != MoeDispatcher::hybridep;
  s.embedding_table = embedding_table(model, plan, recipe);
  // Megatron's dispatchers all copy token counts to the host for the experts' products: alltoall
  // and allgather with a blocking copy, DeepEP and HybridEP by spinning on pinned memory. Not in a
  // graph of the whole iteration, and not where a capacity fixes the counts.
  const bool whole_graph = plan.cuda_graph && plan.cuda_graph_scope == CudaGraphScope::full;
  s.counts_on_host =
      model.moe && recipe.host.moe_sync && !whole_graph && plan.moe_capacity_factor == 0;
  // Dropless experts in a graph of the whole iteration need products that read their row counts on
  // the device; in MXFP8 Megatron's are the CuTe DSL kernels with the activation and quantisation
  // in the epilogue (Megatron-Bridge pull request 4249, releases from 26.06 on). GPT-OSS has them
  // as well, biases and clamps in them (cutedsl_fused_grouped_mlp in Megatron-Bridge v0.5.0; issue
  // 256 of cudnn-frontend is about its grouped_gemm_dglu_dbias).
  s.fused_experts = model.moe && recipe.kernels.one_product_per_expert && whole_graph &&
                    plan.precision == Precision::mxfp8 &&
                    plan.moe_dispatcher == MoeDispatcher::hybridep && !s.frozen;
  return s;
}

namespace {

// FNV-1a over words that small fields share: a field takes as many bits as its type may need, and
// where each goes is known when this is compiled.
class FieldHash {
 public:
  template <class T>
  void add(const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      pack(value ? 1 : 0, 1);
    } else if constexpr (std::is_enum_v<T>) {
      pack(static_cast<std::uint64_t>(value), 8);
    } else if constexpr (std::is_floating_point_v<T>) {
      pack(std::bit_cast<std::uint64_t>(static_cast<double>(value)), 64);
    } else {
      pack(static_cast<std::make_unsigned_t<T>>(value), 8 * sizeof(T));
    }
  }
  template <class E>
  void add(const EnumSet<E>& set) {
    add(set.bits);
  }
  void add(const LayerKind& layer) {
    add(layer.moe);
    add(layer.mixer);
    add(layer.mlp);
    add(layer.rotates);
    add(layer.window);
    add(layer.chunk);
  }
  void add(const RankParameters& n) {
    add(n.dense);
    add(n.expert);
  }
  [[nodiscard]] std::uint64_t value() const { return used_ == 0 ? hash_ : hash_mix(hash_, word_); }

 private:
  void pack(std::uint64_t bits, unsigned count) {
    if (used_ + count > 64) {
      hash_ = hash_mix(hash_, word_);
      word_ = used_ = 0;
    }
    word_ |= bits << used_;
    used_ += count;
  }

  std::uint64_t hash_ = kHashSeed;
  std::uint64_t word_ = 0;
  unsigned used_ = 0;
};

// Fields that touch none of `kept` at their default, so that shapes which differ in them alone are
// one key.
BlockShape without_others(BlockShape s, EnumSet<Touches> kept) {
  static const BlockShape kDefault;
  for_each_field([&](const auto& field) {
    if ((field.touches.bits & kept.bits) == 0) s.*field.member = kDefault.*field.member;
  });
  return s;
}

}  // namespace

std::uint64_t hash_of(const BlockShape& s) {
  FieldHash hash;
  for_each_field([&](const auto& field) { hash.add(s.*field.member); });
  return hash.value();
}

BlockShape compute_shape(BlockShape s) {
  // Gradients that backward makes anew lie on the host where the whole optimizer does.
  const double host = s.fresh_gradients && s.optimizer_offload >= 1 ? 1 : 0;
  s = without_others(std::move(s), kWork);
  s.optimizer_offload = host;
  if (s.zero < 2) {
    s.dense_shard = s.expert_shard = s.dense_replicas = s.expert_replicas = 1;
    s.zero = 0;
  }
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
  // Below ZeRO-2 products write fresh gradients where they else add to them: that is their own
  // work. From there on they lie elsewhere, and no more.
  if (s.zero >= 2) s.fresh_gradients = false;
  s = buffer_shape(s);
  // What is kept of a shard joins a microbatch's gradients: the less, the more ranks share them.
  constexpr int kMany = 1 << 20;
  if (s.dense_shard > 1) s.dense_shard = kMany;
  if (s.expert_shard > 1) s.expert_shard = kMany;
  s.next = s.previous = {};
  return s;
}

BlockShape state_shape(BlockShape s) {
  s = without_others(std::move(s), kStates);
  s.micro_batch_size = 1;
  s.seq_len = 1;
  s.layer.window = s.layer.chunk = 0;
  return s;
}

BlockShape with_states_of(BlockShape kind, const BlockShape& base) {
  for_each_field([&](const auto& field) {
    if (field.of_plan && field.touches.has(Touches::states)) {
      kind.*field.member = base.*field.member;
    }
  });
  return kind;
}

}  // namespace qplan
