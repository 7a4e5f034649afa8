#pragma once
// Adapters beside frozen weights (LoRA).

#include "models/parameters.h"
#include "models/program/blocks.h"
#include "planner/rules/rule.h"

namespace qplan::rules {

// Whether any layer of the model is one that the plan adapts.
inline bool adapts_a_layer(const Case& c) {
  return std::any_of(c.m.layers.begin(), c.m.layers.end(), [&](const LayerKind& kind) {
    return !adapters_of(parameters_of(c.m, ModelPart::decoder, kind), c.p.lora()).empty();
  });
}

inline bool adapts_experts(const Case& c) {
  return c.p.lora_rank > 0 && c.m.moe && c.p.lora().has(LoraTarget::experts);
}

// Beside row-parallel layers the first matrix is split by its columns; experts' over etp.
inline constexpr auto kWholeRank =
    set_of(LoraTarget::o_proj, LoraTarget::down_proj, LoraTarget::out_proj, LoraTarget::experts);

inline constexpr auto kAdapters = std::to_array<Rule>({
    {"lora_words_need_rank", kEvery,
     [](const Case& c) {
       return c.p.lora_rank == 0 && (!c.p.lora_targets.empty() || c.p.lora_dropout > 0 ||
                                     c.p.fp32_norms || c.p.lora_a2a || c.p.lora_embeddings ||
                                     c.p.dora || c.p.lora_dtype != AdapterFormat::computed ||
                                     c.p.frozen_weights != FrozenFormat::computed);
     },
     [](const Case& c) {
       return fmt::format(
           "{} is said of LoRA, and there are no adapters; give a lora_rank, or leave it out",
           !c.p.lora_targets.empty()                      ? "lora_targets"
           : c.p.lora_dropout > 0                         ? "lora_dropout"
           : c.p.fp32_norms                               ? "fp32_norms"
           : c.p.lora_a2a                                 ? "lora_a2a"
           : c.p.lora_embeddings                          ? "lora_embeddings"
           : c.p.dora                                     ? "dora"
           : c.p.lora_dtype != AdapterFormat::computed    ? "lora_dtype"
           : c.p.frozen_weights != FrozenFormat::computed ? "frozen_weights"
                                                          : "lora_alpha");
     },
     "arithmetic: no rank, no adapters"},
    {"lora_adapts_a_layer", kEvery,
     [](const Case& c) { return c.p.lora_rank > 0 && !adapts_a_layer(c); },
     [](const Case& c) {
       return fmt::format(
           "{} has no layer that lora_targets name; nothing would be trained; use "
           "lora_targets all-linear",
           c.m.name);
     },
     "arithmetic: no layer of these names, no adapters"},
    {"lora_dropout_share", kEvery, [](const Case& c) { return c.p.lora_dropout >= 1; },
     [](const Case& c) {
       return fmt::format("lora_dropout {} would drop everything; use a share below 1",
                          c.p.lora_dropout);
     },
     "PyTorch 2.9, torch/nn/modules/dropout.py (a probability between 0 and 1)"},
    {"quantized_available", kEvery - (kTorch | kDeepSpeed | set_of(RecipeKind::ddp)),
     [](const Case& c) { return c.p.frozen_weights != FrozenFormat::computed; },
     [](const Case& c) {
       return not_in(c, fmt::format("frozen weights in {}", to_word(c.p.frozen_weights)),
                     "use frozen_weights computed");
     },
     "qplan: bitsandbytes' and GPTQ's layers are those of Hugging Face's models"},
    {"frozen_fp32_gathered", kEvery,
     [](const Case& c) {
       return c.p.frozen_weights == FrozenFormat::fp32 &&
              !gathers_parameters(recipe_of(c.recipe), c.p.zero);
     },
     [](const Case& c) {
       return fmt::format(
           "frozen weights in fp32 are cast where they are gathered; {} with zero {} gathers none, "
           "and casts "
           "each at every use, which is not modelled; use frozen_weights computed, or zero 3",
           recipe_name(c), c.p.zero);
     },
     "PyTorch 2.9, torch/amp/autocast_mode.py; qplan: not modelled"},
    {"quantized_tp", kEvery,
     [](const Case& c) { return is_quantized(c.p.frozen_weights) && c.p.tp > 1; },
     [](const Case& c) {
       return fmt::format(
           "quantised weights are not split over tensor parallelism; use tp 1, not {}", c.p.tp);
     },
     "transformers 5.23, src/transformers/quantizers/quantizer_bnb_4bit.py (no tensor-parallel "
     "plan)"},
    // Megatron-Bridge's parallel adapters read the gathered input that Transformer Engine's
    // overlapped layers return (return_layernorm_output_gathered), and add to what such a layer has
    // reduced.
    {"lora_overlap_tp", kEvery - kMegatronCore,
     [](const Case& c) { return c.p.lora_rank > 0 && c.p.overlap.has(OverlapKind::tp); },
     [](const Case&) {
       return std::string(
           "adapters read a layer's whole input, which overlap tp brings in pieces; "
           "leave tp out of overlap");
     },
     "qplan: overlapped products with adapters are not modelled"},
    {"lora_vision", set_of(RecipeKind::qplan),
     [](const Case& c) { return c.p.lora_rank > 0 && c.m.vision.has_value(); },
     [](const Case& c) {
       return not_in(c, "adapters beside a vision tower", "predict it as fsdp2 or megatron");
     },
     "qplan: its executor trains vision towers, and does not pass them frozen"},
    {"lora_executor_dropout", set_of(RecipeKind::qplan),
     [](const Case& c) { return c.p.lora_dropout > 0; },
     [](const Case& c) { return not_in(c, "dropout before adapters", "use lora_dropout 0"); },
     "qplan: its executor draws no random numbers in a step"},
    {"lora_experts_etp", kCoreAndOwn,
     [](const Case& c) { return adapts_experts(c) && c.p.etp > 1; },
     [](const Case& c) { return not_in(c, "adapters of experts that etp splits", "use etp 1"); },
     "qplan: models/program/state_transfers.cpp sums parts of gradients over tp alone, and "
     "models/program/adapters.cpp gathers over tp"},
    {"lora_rank_tp", kMegatronCore,
     [](const Case& c) {
       return c.p.lora_rank % c.p.tp != 0 &&
              !((c.p.lora_targets.empty() ? all_linear() : c.p.lora_targets) - kWholeRank).empty();
     },
     [](const Case& c) {
       return fmt::format(
           "tp {} splits the {} rows of an adapter's first matrix; use a lora_rank that it divides",
           c.p.tp, c.p.lora_rank);
     },
     "Megatron-Bridge 067f987d, src/megatron/bridge/peft/utils.py (ColumnParallelLinear of "
     "ParallelLinearAdapter)"},
    {"lora_embeddings_tied", kHuggingFace,
     [](const Case& c) { return c.p.lora_embeddings && c.m.tie_word_embeddings; },
     [](const Case& c) {
       return fmt::format(
           "{} has one table for embedding and head, of which PEFT makes two trained ones; that is "
           "not modelled; leave lora_embeddings out",
           c.m.name);
     },
     "PEFT 5d602fdb, src/peft/tuners/lora/config.py (ensure_weight_tying, off)"},
    {"lora_embeddings_lookup", kEvery,
     [](const Case& c) {
       return c.p.lora_embeddings &&
              (c.m.num_mtp_layers > 0 || c.m.position == PositionEmbedding::learned ||
               c.m.vision.has_value());
     },
     [](const Case& c) {
       return fmt::format(
           "embeddings of {} stand beside what adapters leave frozen in one array (learned "
           "positions, multi-token prediction, a vision tower); leave lora_embeddings out",
           c.m.name);
     },
     "qplan: models/program/vocabulary_blocks.cpp looks both up in one array"},
    {"dora_experts", kEvery, [](const Case& c) { return c.p.dora && adapts_experts(c); },
     [](const Case&) {
       return std::string(
           "experts' adapters have no magnitudes; leave experts out of lora_targets, or dora out");
     },
     "PEFT 5d602fdb, src/peft/tuners/lora/layer.py:2283 (ParamWrapper does not work with "
     "use_dora); Megatron-Bridge 067f987d, src/megatron/bridge/peft/dora_layers.py (reads the one "
     "weight of a layer)"},
    {"dora_parallel", kMegatronCore,
     [](const Case& c) { return c.p.dora && (c.p.lora_dropout > 0 || c.p.lora_a2a); },
     [](const Case& c) {
       return not_in(c, "DoRA with dropout or an all-to-all of adapters",
                     "use lora_dropout 0 and leave lora_a2a out");
     },
     "Megatron-Bridge 067f987d, src/megatron/bridge/peft/dora.py (no a2a_experimental); qplan: the "
     "second product that dropout takes there is not modelled"},
    {"lora_fp8", set_of(RecipeKind::qplan),
     [](const Case& c) { return c.p.lora_rank > 0 && c.p.precision == Precision::fp8; },
     [](const Case& c) { return not_in(c, "adapters beside fp8 products", "use bf16"); },
     "qplan: models/program/fp8_linear.cpp has no adapters"},
});

}  // namespace qplan::rules
