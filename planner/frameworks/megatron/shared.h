#pragma once
// Rows that Megatron-LM and its fork in Megatron-DeepSpeed spell and mean alike. Each table puts
// them in an order of its own; where the two differ, each has its row.

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "planner/frameworks/option.h"

namespace qplan::megatron {

// Whether Megatron-LM's own FSDP shards the states.
inline bool fsdp(const Subject& s) {
  return s.recipe == RecipeKind::megatron_fsdp;
}

// ---- the plan ----

inline constexpr Option kTensorParallel{"--tensor-model-parallel-size", "tp",
                                        plan_value<&ParallelPlan::tp>,
                                        set_degree<&ParallelPlan::tp>};
inline constexpr Option kSequenceParallel{
    "--sequence-parallel", "sequence_parallel",
    [](const Subject& s) { return if_true(s.plan.sequence_parallel); },
    [](Draft& d, const Json& v) { d.plan.sequence_parallel = truth_of(v); }};
inline constexpr Option kPipelineParallel{"--pipeline-model-parallel-size", "pp",
                                          plan_value<&ParallelPlan::pp>,
                                          set_degree<&ParallelPlan::pp>};
inline constexpr Option kMicroBatch{"--micro-batch-size", "micro_batch_size",
                                    plan_value<&ParallelPlan::micro_batch_size>,
                                    set_count<&ParallelPlan::micro_batch_size>};
inline constexpr Option kGlobalBatch{"--global-batch-size", "global_batch_size",
                                     plan_value<&ParallelPlan::global_batch_size>,
                                     set_count<&ParallelPlan::global_batch_size>};
inline constexpr Option kSequenceLength{"--seq-length", "seq_len",
                                        plan_value<&ParallelPlan::seq_len>,
                                        set_count<&ParallelPlan::seq_len>};
inline constexpr Option kBf16{
    "--bf16", "precision",
    [](const Subject& s) { return if_true(s.plan.precision != Precision::fp16); },
    [](Draft& d, const Json& v) {
      if (truth_of(v)) d.plan.precision = Precision::bf16;
    }};

// ---- the model ----

inline constexpr std::string_view kOtherShapes = "the layers get other shapes than the model's";
inline constexpr std::string_view kOtherModel = "another model is trained";
inline constexpr std::string_view kOtherRotation = "positions turn at another rate";

inline bool modern(const Subject& s) {
  return s.model.position == PositionEmbedding::rope;
}

inline bool never(const Subject&) {
  return false;
}

inline Json rope_theta(const Subject& s) {
  return if_true(modern(s), static_cast<std::int64_t>(s.model.rope_theta));
}

inline Json without_linear_bias(const Subject& s) {
  return if_true(!s.model.mlp_bias && !s.model.attention_output_bias);
}

// What --ffn-hidden-size and --kv-channels are where they are left out. With --swiglu two thirds of
// 4 h, in multiples of 64 (transformer_config.py).
inline Json default_mlp_width(const Subject& s) {
  const std::int64_t h = s.model.hidden_size;
  return s.model.mlp == MlpKind::swiglu ? 8 * h / 3 / 64 * 64 : 4 * h;
}
inline Json default_head_width(const Subject& s) {
  return s.model.hidden_size / s.model.num_attention_heads;
}

inline constexpr Fact kLayers{.key = "--num-layers",
                              .write = [](const Subject& s) { return Json(s.model.num_layers); },
                              .otherwise = "",
                              .why = kOtherShapes};
inline constexpr Fact kHidden{.key = "--hidden-size",
                              .write = [](const Subject& s) { return Json(s.model.hidden_size); },
                              .otherwise = "",
                              .why = kOtherShapes};
inline constexpr Fact kHeads{
    .key = "--num-attention-heads",
    .write = [](const Subject& s) { return Json(s.model.num_attention_heads); },
    .otherwise = "",
    .why = kOtherShapes};
inline constexpr Fact kPositions{
    .key = "--max-position-embeddings",
    .write =
        [](const Subject& s) {
          return Json(std::max(s.model.max_position_embeddings, s.plan.seq_len));
        },
    .otherwise = "",
    .judged = never};
inline constexpr Fact kSwiglu{
    .key = "--swiglu",
    .write = [](const Subject& s) { return if_true(s.model.mlp == MlpKind::swiglu); },
    .otherwise = "false",
    .why = kOtherModel};
inline constexpr Fact kSquaredRelu{
    .key = "--squared-relu",
    .write = [](const Subject& s) { return if_true(s.model.mlp == MlpKind::relu2); },
    .otherwise = "false",
    .why = kOtherModel};
inline constexpr Fact kUntied{
    .key = "--untie-embeddings-and-output-weights",
    .write = [](const Subject& s) { return if_true(!s.model.tie_word_embeddings); },
    .otherwise = "false",
    .why = "the head shares the embedding's weights"};

}  // namespace qplan::megatron
