#pragma once
// What our own executor does not run (yet): refused before anything starts.

#include "models/image_layout.h"
#include "models/program/step_program.h"
#include "planner/rules/rule.h"

namespace qplan::rules {

// The part of a model that the executor lacks, or "".
inline std::string_view unexecuted_part(const ModelSpec& m) {
  const bool learned = m.position == PositionEmbedding::learned;
  if (m.num_mtp_layers > 0 && (m.tie_word_embeddings || learned)) {
    return "multi-token prediction beside a tied embedding or learned positions";
  }
  if (m.num_mtp_layers > 0 && m.vision) return "multi-token prediction beside a vision tower";
  if (m.attention_output_gate && !m.qk_norm) return "a gate on attention's output without norms";
  const auto rotates = [](const LayerKind& layer) { return layer.rotates; };
  if (m.qk_norm && !std::all_of(m.layers.begin(), m.layers.end(), rotates)) {
    return "norms of queries and keys in layers without rotary embedding";
  }
  if (m.qk_norm_whole) return "norms of queries and keys over all heads together";
  if (m.norm_place != NormPlace::before) return "norms behind attention and MLP";
  if (m.parallel_mlp) return "an MLP beside attention";
  if (m.gelu_gate) return "MLPs gated by a GELU";
  if (m.indexer) return "attention to keys that an indexer chooses";
  if (m.qk_norm_each) return "norms of queries and keys with weights of each head";
  if (m.moe && m.moe->corrects_softmax) return "a softmax over experts that is corrected";
  if (m.vision && m.vision->gated) return "a vision tower of Qwen2.5-VL's kind";
  // It joins hidden state and embedding in the other order than DeepSeek-V3's.
  if (m.architecture == "mimo" && m.num_mtp_layers > 0) return "MiMo's multi-token prediction";
  if (!m.unmodelled.empty()) return m.unmodelled.front();
  if (m.read_as && !m.read_as->ignored_keys.empty()) {
    return "keys that were ignored (--as)";
  }
  if (m.rope_scaling && m.rope_scaling->kind == RopeScalingKind::other) {
    return "a rule of rotary scaling other than linear, llama3 and yarn";
  }
  return "";
}

inline bool has_biases(const ModelSpec& m) {
  return m.qkv_bias || m.attention_output_bias || m.mlp_bias;
}

// Of a microbatch.
inline std::int64_t visual_tokens(const Case& c) {
  const ImageLayout layout(c.m, c.p.seq_len, JobFacts{}.images);
  return c.p.micro_batch_size * layout.images() * layout.tokens();
}

inline constexpr auto kExecutor = std::to_array<Rule>({
    {"executor_model", set_of(RecipeKind::qplan),
     [](const Case& c) { return !unexecuted_part(c.m).empty(); },
     [](const Case& c) {
       return fmt::format("qplan does not execute a model with {}; predict it as megatron",
                          unexecuted_part(c.m));
     },
     "qplan: its executor has no such layers yet"},
    {"executor_documents", set_of(RecipeKind::qplan),
     [](const Case& c) { return c.p.document_len > 0; },
     [](const Case&) {
       return std::string(
           "qplan does not execute packed documents; leave document_len out, or predict it as "
           "megatron");
     },
     "qplan: its executor runs whole sequences"},
    // Deepstack tokens are added where the tower is, in the first stage.
    {"executor_deepstack", set_of(RecipeKind::qplan),
     [](const Case& c) {
       return c.m.vision &&
              stage_layers(c.m, c.p).front() < std::ssize(c.m.vision->deepstack_layers);
     },
     [](const Case& c) {
       return fmt::format(
           "the first stage has {} decoder layers, and qplan adds {} deepstack mergers' tokens to "
           "the first layers beside the tower; use fewer stages",
           stage_layers(c.m, c.p).front(), c.m.vision->deepstack_layers.size());
     },
     "qplan: models/program/step_program.cpp adds a tower's tokens in the first stage"},
    {"executor_vision_sp", set_of(RecipeKind::qplan),
     [](const Case& c) {
       return c.m.vision && c.p.sequence_parallel && !divides(c.p.tp, visual_tokens(c));
     },
     [](const Case& c) {
       return fmt::format(
           "sp splits a microbatch's {} visual tokens, and tp {} does not divide them",
           visual_tokens(c), c.p.tp);
     },
     "qplan: models/program/vision_blocks.cpp shares visual tokens over tp evenly"},
    {"executor_mamba_groups", set_of(RecipeKind::qplan),
     [](const Case& c) {
       // Where tp alone cannot share them, mamba_heads says so.
       return c.m.mamba && divides(c.p.tp, c.m.mamba->num_groups) &&
              !divides(std::int64_t{c.p.tp} * c.p.cp, c.m.mamba->num_groups);
     },
     [](const Case& c) {
       return fmt::format(
           "qplan does not repeat Mamba-2's {} groups where tp {} x cp {} ranks share them; use a "
           "product that divides {}",
           c.m.mamba->num_groups, c.p.tp, c.p.cp, c.m.mamba->num_groups);
     },
     "qplan: executor/cpu/mamba.cpp has whole groups on a rank"},
    {"executor_recurrence_fp8", set_of(RecipeKind::qplan),
     [](const Case& c) { return c.p.precision == Precision::fp8 && (c.m.delta_net || c.m.mamba); },
     [](const Case& c) {
       return not_in(c, "precision fp8 of Gated DeltaNet and Mamba-2", "use bf16");
     },
     "qplan: no fp8 run of them was compared with another"},
    {"executor_dispatcher", set_of(RecipeKind::qplan),
     [](const Case& c) { return c.p.ep > 1 && c.p.moe_dispatcher == MoeDispatcher::allgather; },
     [](const Case& c) { return not_in(c, "allgather dispatcher", "use alltoall"); },
     "qplan: models/program/moe_part.cpp exchanges tokens all to all"},
    {"executor_fp8", set_of(RecipeKind::qplan),
     [](const Case& c) {
       return c.p.precision == Precision::fp8 && (c.m.vision || has_biases(c.m));
     },
     [](const Case& c) {
       return not_in(c, "precision fp8 of a model with biases or a vision tower", "use bf16");
     },
     "qplan: models/program/fp8_linear.cpp has no biases and no towers"},
    // One graph of a step up to the optimizer. An exchange of experts' tokens needs the host for
    // their counts; other collectives inside layers run in a graph, but slower than launched:
    // Qwen3-0.6B, tp2 sp, 1024 tokens, 138 ms instead of 126 (docs/evidence/archive/issue6-fp8.md).
    {"executor_graph", set_of(RecipeKind::qplan),
     [](const Case& c) {
       const bool alone = c.p.tp * c.p.cp * c.p.pp * c.p.ep * c.p.etp == 1 && c.p.zero <= 1;
       return c.p.cuda_graph && !(alone && c.p.cuda_graph_scope == CudaGraphScope::full);
     },
     [](const Case&) {
       return std::string(
           "qplan captures whole steps, of plans without communication inside layers; leave "
           "cuda_graph out, or use tp, cp, pp, ep and etp 1, zero 0 or 1 and cuda_graph_scope "
           "full");
     },
     "qplan: its executor captures a step without communication inside layers"},
    {"executor_state_dtypes", set_of(RecipeKind::qplan),
     [](const Case& c) {
       return c.p.main_params_dtype != DType::fp32 || c.p.moment_dtype == DType::fp8;
     },
     [](const Case& c) {
       return fmt::format(
           "qplan keeps main parameters in fp32 and moments in fp32, bf16 or fp16, not {} and {}",
           to_word(c.p.main_params_dtype), to_word(c.p.moment_dtype));
     },
     "qplan: its executor's AdamW has these formats alone"},
    // Pieces of an overlapped product (models/program/layer_context.cpp).
    {"executor_overlap_tp", set_of(RecipeKind::qplan),
     [](const Case& c) {
       return c.p.overlap.has(OverlapKind::tp) && c.p.sequence_parallel &&
              !divides(4 * c.p.tp, c.p.micro_batch_size * c.p.seq_len / c.p.cp);
     },
     [](const Case& c) {
       return fmt::format(
           "overlap tp works in 4 pieces of a rank's tokens, and {} tokens on tp {} "
           "cannot be cut so",
           c.p.micro_batch_size * c.p.seq_len / c.p.cp, c.p.tp);
     },
     "qplan: models/program/layer_context.cpp cuts overlapped products into 4 pieces"},
});

}  // namespace qplan::rules
