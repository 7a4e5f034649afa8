#pragma once
// Group sizes, the batch, and what tp splits.

#include "planner/rules/rule.h"

namespace qplan::rules {

inline bool has_dense_layer(const ModelSpec& m) {
  return std::any_of(m.layers.begin(), m.layers.end(),
                     [](const LayerKind& kind) { return kind.dense_mlp(); });
}

// The kind of GPU that a pipeline stage would lie on with part of its ranks alone.
inline const GpusOfKind* kind_of_part_stages(const Case& c) {
  const std::int64_t stage = c.p.world() / c.p.pp;
  for (const GpusOfKind& kind : c.limits.kinds) {
    if (!divides(stage, kind.gpus)) return &kind;
  }
  return nullptr;
}

inline constexpr auto kDegrees = std::to_array<Rule>({
    {"positive_sizes", kEvery,
     [](const Case& c) {
       const ParallelPlan& p = c.p;
       return std::min({p.tp, p.pp, p.vpp, p.cp, p.ep, p.etp, p.dp}) < 1 ||
              std::min({p.micro_batch_size, p.global_batch_size, p.seq_len}) < 1 || p.zero < 0 ||
              p.zero > 3 || p.fsdp_shard < 0;
     },
     [](const Case& c) {
       return "degrees, batch sizes and seq_len must be at least 1 and zero 0 to 3: " +
              to_string(c.p);
     },
     "Megatron-LM d98e8a64, megatron/training/arguments.py:694; torchtitan b5bcd76c, "
     "torchtitan/distributed/parallel_dims.py:176; arithmetic: nothing is split into less than one "
     "part"},

    {"document_length", kEvery, [](const Case& c) { return c.p.document_len > c.p.seq_len; },
     [](const Case& c) {
       return fmt::format(
           "a sequence of {} holds no document of {} tokens; use a document_len up to that, or 0 "
           "for sequences that are whole",
           c.p.seq_len, c.p.document_len);
     },
     "arithmetic: documents are packed into sequences, and none is cut"},

    {"whole_stages_of_a_kind", kEvery,
     [](const Case& c) { return kind_of_part_stages(c) != nullptr; },
     [](const Case& c) {
       const GpusOfKind& kind = *kind_of_part_stages(c);
       return fmt::format(
           "a pipeline stage of {} GPUs does not divide the {} of {}; use pp so that each kind of "
           "GPU has whole stages",
           c.p.world() / c.p.pp, kind.gpus, kind.name);
     },
     "qplan: data, tensor and expert parallelism are priced within one kind of GPU"},

    {"kinds_side_by_side", kEvery,
     [](const Case& c) {
       const bool pairs =
           c.p.schedule == ScheduleKind::dualpipe || c.p.overlap.has(OverlapKind::ep);
       return pairs && !c.limits.kinds.empty();
     },
     [](const Case&) {
       return std::string(
           "passes that run side by side are not priced on GPUs of several kinds; "
           "use no dualpipe, nor overlap=ep");
     },
     "qplan: a forward beside a backward is priced on one kind of GPU"},

    // Group sizes and batch.
    {"world_size", kEvery,
     [](const Case& c) { return c.limits.gpus > 0 && c.p.world() != c.limits.gpus; },
     [](const Case& c) {
       return fmt::format("tp {} x cp {} x dp {} x pp {} is {} ranks, not {} GPUs", c.p.tp, c.p.cp,
                          c.p.dp, c.p.pp, c.p.world(), c.limits.gpus);
     },
     "Megatron-LM d98e8a64, megatron/training/arguments.py:432; torchtitan b5bcd76c, "
     "torchtitan/distributed/parallel_dims.py:182; accelerate 16cb6eb8, "
     "src/accelerate/parallelism_config.py:372"},
    {"batch_divisibility", kEvery,
     [](const Case& c) { return !divides(c.p.micro_batch_size * c.p.dp, c.p.global_batch_size); },
     [](const Case& c) {
       return fmt::format(
           "a global batch of {} is not a whole number of microbatches of {} on each of dp {}; "
           "use a multiple of {}",
           c.p.global_batch_size, c.p.micro_batch_size, c.p.dp, c.p.micro_batch_size * c.p.dp);
     },
     "Megatron-LM d98e8a64, megatron/core/num_microbatches_calculator.py:381; DeepSpeed edaa7221, "
     "deepspeed/runtime/config.py:937"},
    {"dense_experts", kEvery, [](const Case& c) { return !c.m.moe && (c.p.ep > 1 || c.p.etp > 1); },
     [](const Case& c) {
       return fmt::format("the model has no experts to split over ep {} x etp {}; use ep 1 etp 1",
                          c.p.ep, c.p.etp);
     },
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1656; Megatron-LM d98e8a64, "
     "megatron/core/transformer/transformer_config.py:1595"},
    {"expert_world", kEvery,
     [](const Case& c) {
       return !divides(std::int64_t{c.p.etp} * c.p.ep, std::int64_t{c.p.tp} * c.p.cp * c.p.dp);
     },
     [](const Case& c) {
       return fmt::format("etp {} x ep {} does not divide the {} ranks of a stage (tp x cp x dp)",
                          c.p.etp, c.p.ep, std::int64_t{c.p.tp} * c.p.cp * c.p.dp);
     },
     "Megatron-LM d98e8a64, megatron/core/parallel_state.py:881; torchtitan b5bcd76c, "
     "torchtitan/distributed/parallel_dims.py:188; DeepSpeed edaa7221, "
     "deepspeed/module_inject/auto_ep_folding.py:111"},
    {"experts_per_rank", kEvery,
     [](const Case& c) { return c.m.moe && !divides(c.p.ep, c.m.moe->num_experts); },
     [](const Case& c) {
       return fmt::format("{} experts cannot be split over ep {}; {}", c.m.moe->num_experts, c.p.ep,
                          use_divisor("ep", c.m.moe->num_experts));
     },
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1657; DeepSpeed edaa7221, "
     "deepspeed/module_inject/auto_ep_config.py:285"},
    {"fsdp_shard_divides", kEvery,
     [](const Case& c) {
       return c.p.fsdp_shard > 0 && !divides(c.p.fsdp_shard, std::int64_t{c.p.dp} * c.p.cp);
     },
     [](const Case& c) {
       return fmt::format("fsdp_shard {} does not divide the {} ranks of dp x cp", c.p.fsdp_shard,
                          std::int64_t{c.p.dp} * c.p.cp);
     },
     "Megatron-LM d98e8a64, megatron/core/parallel_state.py:924; torchtitan b5bcd76c, "
     "torchtitan/distributed/parallel_dims.py:182; DeepSpeed edaa7221, "
     "deepspeed/runtime/zero/mics_utils.py:178"},
    {"fsdp_shard_without_zero", kEvery,
     [](const Case& c) { return c.p.fsdp_shard > 0 && c.p.zero == 0; },
     [](const Case& c) {
       return fmt::format("fsdp_shard {} has nothing to shard at zero 0; use zero 1 to 3",
                          c.p.fsdp_shard);
     },
     "arithmetic: at zero 0 every rank holds all states"},

    // Tensor and sequence parallel.
    {"attention_heads", kEvery,
     [](const Case& c) { return !divides(c.p.tp, c.m.num_attention_heads); },
     [](const Case& c) {
       return fmt::format("{} attention heads cannot be split over tp {}; {}",
                          c.m.num_attention_heads, c.p.tp,
                          use_divisor("tp", c.m.num_attention_heads));
     },
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1446; torchtitan "
     "b5bcd76c, torchtitan/models/common/decoder.py:190"},
    {"key_value_heads", kEvery,
     [](const Case& c) {
       const std::int64_t heads = c.m.num_key_value_heads;
       return !c.m.mla && !divides(c.p.tp, heads) && (heads < 1 || !divides(heads, c.p.tp));
     },
     [](const Case& c) {
       return fmt::format(
           "{} key-value heads can neither be split over nor repeated on tp {}; use a tp that "
           "divides {} or is a multiple of it",
           c.m.num_key_value_heads, c.p.tp, c.m.num_key_value_heads);
     },
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1462"},
    // DTensor shards the heads and does not repeat them.
    {"key_value_heads_split", kDTensors,
     [](const Case& c) { return !c.m.mla && !divides(c.p.tp, c.m.num_key_value_heads); },
     [](const Case& c) {
       return fmt::format("{} splits {} key-value heads, and cannot over tp {}; {}", recipe_name(c),
                          c.m.num_key_value_heads, c.p.tp,
                          use_divisor("tp", c.m.num_key_value_heads));
     },
     "torchtitan b5bcd76c, torchtitan/models/common/decoder.py:195; arithmetic: a DTensor is "
     "viewed as whole heads"},
    // Whatever cp_comm is: between ranks that share sequences Gated DeltaNet trades them for heads.
    {"delta_net_heads", kCoreAndOwn,
     [](const Case& c) {
       const std::int64_t ranks = std::int64_t{c.p.tp} * c.p.cp;
       return c.m.delta_net && !divides(ranks, c.m.delta_net->num_key_heads);
     },
     [](const Case& c) {
       return fmt::format(
           "Gated DeltaNet's {} key heads and {} value heads cannot be split over tp {} x cp {}; "
           "use a product that divides {}",
           c.m.delta_net->num_key_heads, c.m.delta_net->num_value_heads, c.p.tp, c.p.cp,
           c.m.delta_net->num_key_heads);
     },
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1502; qplan: "
     "models/program/delta_net_part.cpp splits heads as Megatron does"},
    // Hugging Face's tensor-parallel plan gathers what Gated DeltaNet's projections make, and every
    // rank runs all heads (base_model_tp_plan in configuration_qwen3_next.py: gather_output).
    {"delta_net_tensor_parallel", kDeepSpeed | kTorch,
     [](const Case& c) { return c.m.delta_net && c.p.tp > 1; },
     [](const Case& c) {
       return fmt::format(
           "{} splits no heads of Gated DeltaNet: every rank of tp {} would run all of them; use "
           "tp 1",
           recipe_name(c), c.p.tp);
     },
     "transformers 5.23.0, models/qwen3_next/configuration_qwen3_next.py (base_model_tp_plan: "
     "gather_output)"},
    {"mamba_heads", kCoreAndOwn,
     [](const Case& c) {
       if (!c.m.mamba) return false;
       const std::int64_t groups = c.m.mamba->num_groups;
       const std::int64_t ranks = std::int64_t{c.p.tp} * c.p.cp;
       if (!divides(c.p.tp, groups) || !divides(ranks, c.m.mamba->num_heads)) return true;
       const std::int64_t left = groups / c.p.tp;  // of a tp rank, which cp ranks share or repeat
       return left % c.p.cp != 0 && c.p.cp % left != 0;
     },
     [](const Case& c) {
       return fmt::format(
           "Mamba-2's {} heads in {} groups cannot be split over tp {} x cp {}; use a tp that "
           "divides {} and a product that divides {}",
           c.m.mamba->num_heads, c.m.mamba->num_groups, c.p.tp, c.p.cp, c.m.mamba->num_groups,
           c.m.mamba->num_heads);
     },
     "Megatron-LM d98e8a64, megatron/core/ssm/mamba_mixer.py:262, "
     "megatron/core/ssm/mamba_context_parallel.py:106; qplan: models/program/mamba_part.cpp splits "
     "heads as Megatron does"},
    // transformers' class has no tensor-parallel plan for its layers.
    {"mamba_tensor_parallel", kDeepSpeed | kTorch,
     [](const Case& c) { return c.m.mamba && c.p.tp > 1; },
     [](const Case& c) {
       return fmt::format("{} splits no heads of Mamba-2 over tp {}; use tp 1", recipe_name(c),
                          c.p.tp);
     },
     "transformers 5.23.0, models/nemotron_h/modeling_nemotron_h.py (no tensor-parallel plan)"},
    {"vision_heads", kEvery,
     [](const Case& c) { return c.m.vision && !divides(c.p.tp, c.m.vision->num_heads); },
     [](const Case& c) {
       return fmt::format("the vision tower's {} heads cannot be split over tp {}; {}",
                          c.m.vision->num_heads, c.p.tp, use_divisor("tp", c.m.vision->num_heads));
     },
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1446"},
    {"vision_mlp_split", kEvery,
     [](const Case& c) { return c.m.vision && !divides(c.p.tp, c.m.vision->intermediate_size); },
     [](const Case& c) {
       return fmt::format("the vision tower's MLP of {} columns cannot be split over tp {}; {}",
                          c.m.vision->intermediate_size, c.p.tp,
                          use_divisor("tp", c.m.vision->intermediate_size));
     },
     "Megatron-LM d98e8a64, megatron/core/tensor_parallel/layers.py:842"},
    // Vocabulary rows need no rule: every recipe pads them to a multiple of tp.
    {"mlp_split", kEvery,
     [](const Case& c) { return !divides(c.p.tp, c.m.intermediate_size) && has_dense_layer(c.m); },
     [](const Case& c) {
       return fmt::format("an MLP of {} columns cannot be split over tp {}; {}",
                          c.m.intermediate_size, c.p.tp, use_divisor("tp", c.m.intermediate_size));
     },
     "Megatron-LM d98e8a64, megatron/core/tensor_parallel/layers.py:1038"},
    {"shared_expert_split", kEvery,
     [](const Case& c) {
       return c.m.moe && !divides(c.p.tp, c.m.moe->shared_expert_intermediate_size);
     },
     [](const Case& c) {
       return fmt::format("shared experts of {} columns cannot be split over tp {}; {}",
                          c.m.moe->shared_expert_intermediate_size, c.p.tp,
                          use_divisor("tp", c.m.moe->shared_expert_intermediate_size));
     },
     "Megatron-LM d98e8a64, megatron/core/tensor_parallel/layers.py:1038"},
    {"expert_split", kEvery,
     [](const Case& c) { return c.m.moe && !divides(c.p.etp, c.m.moe->moe_intermediate_size); },
     [](const Case& c) {
       return fmt::format("experts of {} columns cannot be split over etp {}; {}",
                          c.m.moe->moe_intermediate_size, c.p.etp,
                          use_divisor("etp", c.m.moe->moe_intermediate_size));
     },
     "Megatron-LM d98e8a64, megatron/core/tensor_parallel/layers.py:1038"},
    {"expert_bias_split", kMegatronCore,
     [](const Case& c) { return c.m.moe && c.m.moe->expert_bias && c.p.etp > 1; },
     [](const Case& c) {
       return fmt::format("experts with biases cannot be split, so etp {} is impossible; use etp 1",
                          c.p.etp);
     },
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:2614"},
    {"sequence_parallel_alone", kEvery,
     [](const Case& c) { return c.p.sequence_parallel && c.p.tp == 1; },
     [](const Case&) {
       return std::string(
           "sequence_parallel shares work among tp ranks, and tp is 1; leave it out");
     },
     "Megatron-LM d98e8a64, megatron/core/model_parallel_config.py:504, "
     "megatron/training/arguments.py:1436"},
    {"moe_needs_sequence_parallel", kCoreAndOwn | set_of(fsdp2_compile),
     [](const Case& c) { return c.m.moe && c.p.tp > 1 && !c.p.sequence_parallel; },
     [](const Case& c) {
       return fmt::format(
           "experts under tp {} need sequence_parallel, or every tp rank would send the same "
           "tokens",
           c.p.tp);
     },
     "Megatron-LM d98e8a64, megatron/core/transformer/moe/moe_layer.py:636"},
    {"sequence_split", kEvery - kDeepSpeed,
     [](const Case& c) { return c.p.cp > 1 && !divides(std::int64_t{2} * c.p.cp, c.p.seq_len); },
     [](const Case& c) {
       return fmt::format(
           "a sequence of {} cannot be cut into the {} pieces (2 x cp) that balance a causal mask",
           c.p.seq_len, 2 * c.p.cp);
     },
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1336"},
    {"sequence_split_ulysses", kDeepSpeed,
     [](const Case& c) { return !divides(c.p.cp, c.p.seq_len); },
     [](const Case& c) {
       return fmt::format("a sequence of {} cannot be split over cp {}", c.p.seq_len, c.p.cp);
     },
     "DeepSpeed edaa7221, deepspeed/runtime/sequence_parallel/ulysses_sp.py:697"},
    {"sequence_parallel_split", kEvery,
     [](const Case& c) {
       return c.p.sequence_parallel && !divides(std::int64_t{c.p.cp} * c.p.tp, c.p.seq_len);
     },
     [](const Case& c) {
       return fmt::format(
           "sequence_parallel cannot split a sequence of {} over cp {} x tp {} = {} ranks",
           c.p.seq_len, c.p.cp, c.p.tp, c.p.cp * c.p.tp);
     },
     "Megatron-LM d98e8a64, megatron/core/tensor_parallel/mappings.py:73; torchtitan b5bcd76c, "
     "torchtitan/trainer.py:302"},
    {"learned_positions", kEvery,
     [](const Case& c) {
       return c.m.position == PositionEmbedding::learned && c.m.max_position_embeddings > 0 &&
              c.p.seq_len > c.m.max_position_embeddings;
     },
     [](const Case& c) {
       return fmt::format("the model has {} learned positions, too few for seq_len {}",
                          c.m.max_position_embeddings, c.p.seq_len);
     },
     "Megatron-LM d98e8a64, megatron/training/arguments.py:1354"},
});

}  // namespace qplan::rules
