#pragma once
// What our own executor does not run (yet): refused before anything starts.

#include "planner/rules/rule.h"

namespace qplan::rules {

// The part of a model that the executor lacks, or "".
inline std::string_view unexecuted_part(const ModelSpec& m) {
  if (m.vision) return "a vision tower";
  const bool learned = m.position == PositionEmbedding::learned;
  if (m.num_mtp_layers > 0 && (m.tie_word_embeddings || learned)) {
    return "multi-token prediction beside a tied embedding or learned positions";
  }
  if (m.rope_scaling && m.rope_scaling->kind == RopeScalingKind::other) {
    return "a rule of rotary scaling other than linear, llama3 and yarn";
  }
  return "";
}

inline constexpr auto kExecutor = std::to_array<Rule>({
    {"executor_model", set_of(RecipeKind::qplan),
     [](const Case& c) { return !unexecuted_part(c.m).empty(); },
     [](const Case& c) {
       return fmt::format("qplan does not execute a model with {}; predict it as megatron",
                          unexecuted_part(c.m));
     },
     "executor/"},
    {"executor_dispatcher", set_of(RecipeKind::qplan),
     [](const Case& c) { return c.p.ep > 1 && c.p.moe_dispatcher == MoeDispatcher::allgather; },
     [](const Case& c) { return not_in(c, "allgather dispatcher", "use alltoall"); },
     "models/program/moe_part.cpp"},
    {"executor_state_dtypes", set_of(RecipeKind::qplan),
     [](const Case& c) {
       return c.p.main_params_dtype != DType::fp32 || c.p.moment_dtype == DType::fp8;
     },
     [](const Case& c) {
       return fmt::format(
           "qplan keeps main parameters in fp32 and moments in fp32, bf16 or fp16, not {} and {}",
           to_word(c.p.main_params_dtype), to_word(c.p.moment_dtype));
     },
     "executor/cpu_states.cpp"},
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
     "models/program/layer_context.cpp"},
});

}  // namespace qplan::rules
