#pragma once
// Context parallelism: who has it, and what it splits.

#include "planner/rules/chunks.h"
#include "planner/rules/rule.h"

namespace qplan::rules {

inline bool has_window(const ModelSpec& m) {
  return std::any_of(m.layers.begin(), m.layers.end(),
                     [](const LayerKind& kind) { return kind.window > 0; });
}

// Key and value heads that a rank holds; with fewer heads than ranks each keeps a copy of one.
inline std::int64_t kv_heads_per_rank(const Case& c) {
  const std::int64_t heads = c.m.mla ? c.m.num_attention_heads : c.m.num_key_value_heads;
  return std::max<std::int64_t>(1, heads / c.p.tp);
}

inline constexpr auto kContext = std::to_array<Rule>({
    {"context_parallel_available", set_of(megatron_legacy, ddp, fsdp1),
     [](const Case& c) { return c.p.cp > 1; },
     [](const Case& c) { return not_in(c, "context parallelism", "use cp 1"); },
     "accelerate 16cb6eb8, src/accelerate/commands/launch.py:1206; PyTorch 2.9, "
     "torch/nn/parallel/distributed.py (whole models); qplan: Megatron-LM of 2021-22 has no flag "
     "for it"},
    {"ulysses_heads", kEvery - kDeepSpeed,
     [](const Case& c) {
       return c.p.cp > 1 && c.p.cp_comm == CpComm::a2a &&
              (!divides(c.p.cp, c.m.num_attention_heads / c.p.tp) ||
               !divides(c.p.cp, kv_heads_per_rank(c)));
     },
     [](const Case& c) {
       return fmt::format(
           "cp_comm a2a trades sequence for heads, and a rank's {} query and {} key-value heads "
           "do not split over cp {}; use {}",
           c.m.num_attention_heads / c.p.tp, kv_heads_per_rank(c), c.p.cp,
           chunk_within(c.m, c.p) > 0 || has_window(c.m) ? "a smaller cp" : "p2p");
     },
     "TransformerEngine d0067d0d, "
     "transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py:4246"},
    {"deepspeed_ulysses_heads", kDeepSpeed,
     [](const Case& c) {
       const std::int64_t heads = c.m.num_attention_heads / c.p.tp;
       const std::int64_t kv = kv_heads_per_rank(c);
       return !divides(c.p.cp, heads) || (!divides(c.p.cp, kv) && !divides(kv, c.p.cp));
     },
     [](const Case& c) {
       return fmt::format(
           "Ulysses trades sequence for heads, and a rank's {} query and {} key-value heads do "
           "not split over cp {}",
           c.m.num_attention_heads / c.p.tp, kv_heads_per_rank(c), c.p.cp);
     },
     "DeepSpeed edaa7221, deepspeed/runtime/sequence_parallel/ulysses_sp.py:145"},
    {"ulysses_only", kDeepSpeed,
     [](const Case& c) { return c.p.cp > 1 && c.p.cp_comm != CpComm::a2a; },
     [](const Case& c) {
       return fmt::format("{} splits sequences by Ulysses; use cp_comm a2a, not {}", recipe_name(c),
                          to_word(c.p.cp_comm));
     },
     "DeepSpeed edaa7221, deepspeed/runtime/sequence_parallel/ulysses_sp.py; Megatron-DeepSpeed "
     "4efb479d, megatron/arguments.py:974"},
    {"ulysses_with_sequence_parallel", set_of(megatron_deepspeed),
     [](const Case& c) { return c.p.cp > 1 && c.p.sequence_parallel; },
     [](const Case& c) {
       return fmt::format("megatron-deepspeed refuses sequence_parallel together with cp {}",
                          c.p.cp);
     },
     "Megatron-DeepSpeed 4efb479d, megatron/initialize.py:247"},
    // Their context parallelism shares attention's keys, and has no word for a state that runs
    // through the sequence.
    {"delta_net_context", kDeepSpeed | kTorch,
     [](const Case& c) { return c.p.cp > 1 && c.m.delta_net; },
     [](const Case& c) {
       return fmt::format(
           "{} shares sequences within attention only, and Gated DeltaNet's state runs through the "
           "whole sequence; use cp 1",
           recipe_name(c));
     },
     "PyTorch 2.11, torch/distributed/tensor/experimental/_attention.py (attention alone); "
     "DeepSpeed edaa7221, deepspeed/runtime/sequence_parallel/ulysses_sp.py (attention alone)"},
    {"mamba_context", kDeepSpeed | kTorch, [](const Case& c) { return c.p.cp > 1 && c.m.mamba; },
     [](const Case& c) {
       return fmt::format(
           "{} shares sequences within attention only, and Mamba-2's state runs through the whole "
           "sequence; use cp 1",
           recipe_name(c));
     },
     "PyTorch 2.11, torch/distributed/tensor/experimental/_attention.py (attention alone); "
     "DeepSpeed edaa7221, deepspeed/runtime/sequence_parallel/ulysses_sp.py (attention alone)"},
    {"ring_window", kMegatronCore,
     [](const Case& c) { return c.p.cp > 1 && c.p.cp_comm == CpComm::p2p && has_window(c.m); },
     [](const Case&) {
       return std::string(
           "the ring (cp_comm p2p) has no sliding windows; use cp_comm a2a or all_gather");
     },
     "TransformerEngine d0067d0d, "
     "transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py:5057"},
    {"sinks_context", kMegatronCore,
     [](const Case& c) { return c.p.cp > 1 && c.m.attention_sinks && c.p.cp_comm != CpComm::a2a; },
     [](const Case& c) {
       return fmt::format("attention with sinks has no cp_comm {}; use a2a, or cp 1",
                          to_word(c.p.cp_comm));
     },
     "TransformerEngine d0067d0d, "
     "transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py:5066"},
    // Where heads are traded for sequence a rank has whole chunks.
    {"chunked_context", kEvery,
     [](const Case& c) {
       return c.p.cp > 1 && c.p.cp_comm != CpComm::a2a && chunk_within(c.m, c.p) > 0;
     },
     [](const Case& c) {
       return fmt::format(
           "attention within chunks of {} tokens has no cp_comm {}; use cp_comm a2a, or cp 1",
           chunk_within(c.m, c.p), to_word(c.p.cp_comm));
     },
     "TransformerEngine d0067d0d, "
     "transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py:5057 (a chunk "
     "is a window); torchtitan 030c210c, torchtitan/models/llama4/model.py:185"},
    {"indexer_context", kEvery, [](const Case& c) { return c.p.cp > 1 && c.m.indexer; },
     [](const Case& c) {
       return fmt::format(
           "keys that an indexer chooses are not predicted with cp {}; use cp 1, and tp for longer "
           "sequences",
           c.p.cp);
     },
     "qplan: models/program/indexer_part.cpp scores the keys of one rank"},
    {"fpdt_whole_chunks", set_of(megatron_deepspeed),
     [](const Case& c) {
       const std::int64_t chunk = c.p.fpdt_chunk;
       return chunk > 0 &&
              (!divides(chunk, c.p.seq_len) || !divides(std::int64_t{32} * c.p.cp, chunk) ||
               c.p.document_len > 0 || c.p.seq_len / chunk > 64);
     },
     [](const Case& c) {
       return fmt::format(
           "sequences of {} are no whole number, of up to 64, of chunks of fpdt_chunk {} that cp "
           "{} "
           "cuts into 32 parts each; use an fpdt_chunk that divides {} and is a multiple of {}",
           c.p.seq_len, c.p.fpdt_chunk, c.p.cp, c.p.seq_len, 32 * c.p.cp);
     },
     "DeepSpeed 4a21e491, deepspeed/sequence/fpdt_layer.py (FPDT_InputConstruct); "
     "Megatron-DeepSpeed 4efb479d, megatron/model/gpt_model.py:47; qplan: more chunks than the "
     "authors' 4M tokens have are not modelled"},
    {"fpdt_layers", set_of(megatron_deepspeed),
     [](const Case& c) {
       const bool plain = c.m.mlp == MlpKind::gelu && c.m.qkv_bias && c.m.mlp_bias && !c.m.moe &&
                          !c.m.mla && !c.m.qk_norm && !has_window(c.m) && !c.m.vision;
       return c.p.fpdt_chunk > 0 && !plain;
     },
     [](const Case& c) {
       return fmt::format(
           "FPDT's MLP is one projection with a bias and GELU, and its attention has biases: it "
           "stops at {}'s layers; leave fpdt_chunk out",
           c.m.name);
     },
     "DeepSpeed 4a21e491, deepspeed/sequence/fpdt_layer.py (FPDT_FFN, FPDT_Attention)"},
    {"fpdt_alone", set_of(megatron_deepspeed),
     [](const Case& c) {
       return c.p.fpdt_chunk > 0 &&
              (c.p.tp > 1 || c.p.pp > 1 || c.p.recompute.kind == RecomputeKind::selective ||
               c.p.precision == Precision::fp8 || c.p.lora_rank > 0);
     },
     [](const Case& c) {
       return fmt::format(
           "layers of fpdt_chunk {} hold their weights whole and in 16 bits, outside of pipelines, "
           "and are recomputed whole or not; use tp 1, pp 1, recompute none or full, no adapters",
           c.p.fpdt_chunk);
     },
     "Megatron-DeepSpeed 4efb479d, megatron/model/transformer.py:911 (launch_chunk_attention)"},
    {"mla_cp_comm", kMegatronCore,
     [](const Case& c) { return c.p.cp > 1 && c.m.mla && c.p.cp_comm != CpComm::p2p; },
     [](const Case& c) {
       return fmt::format("latent attention has no cp_comm {}; use p2p", to_word(c.p.cp_comm));
     },
     "TransformerEngine v2.14, "
     "transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py:4073; qplan: "
     "not predicted, though v2.15 no longer refuses it"},
});

}  // namespace qplan::rules
