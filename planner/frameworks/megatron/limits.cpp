// Plans that the rules accept and Megatron's arguments have no word for.

#include <fmt/format.h>

#include <algorithm>

#include "planner/frameworks/megatron/megatron.h"
#include "planner/frameworks/megatron/shared.h"
#include "planner/rules/chunks.h"

namespace qplan {
namespace {

// What of a model qplan does not write for Megatron, or "".
std::string unwritten_part(const ModelSpec& m) {
  if (m.vision) return "a vision tower";
  if (m.qk_norm_whole) return "norms of queries and keys over all heads";
  if (m.qk_norm_each) return "norms of queries and keys with weights of each head";
  if (m.norm_place != NormPlace::before) return "norms behind attention and MLP";
  if (m.parallel_mlp) return "an MLP beside attention";
  if (m.gelu_gate) return "MLPs gated by a GELU";
  if (m.indexer) return "an indexer of keys";
  if (m.moe && m.moe->corrects_softmax) return "a corrected softmax over experts";
  const bool scaled = m.rope_scaling && !m.mla;
  if (scaled && m.rope_scaling->kind == RopeScalingKind::other) {
    return "a rule of rotary scaling other than llama3 and yarn";
  }
  return m.unmodelled.empty() ? "" : m.unmodelled.front();
}

constexpr auto kLimits = std::to_array<Limit>({
    {"no_compile", [](const Subject& s) { return s.plan.compile; },
     [](const Subject&) {
       return std::string("Megatron has no torch.compile of the model; leave compile out");
     }},
    {"loss_of_te", [](const Subject& s) { return s.plan.loss == LossKind::te; },
     [](const Subject&) {
       return std::string(
           "Megatron-LM's training refuses Transformer Engine's loss since June 2026 (168cb15d70); "
           "leave loss out, which is native");
     }},
    {"flags_fp8_attention", [](const Subject& s) { return s.plan.fp8_dot_product_attention; },
     [](const Subject&) {
       return std::string(
           "Megatron's arguments have no attention in fp8 (megatron/training/arguments.py keeps "
           "fp8_dot_product_attention out of them); leave it out, or use megatron-bridge");
     }},
    {"written_dropout", [](const Subject& s) { return s.plan.dropout; },
     [](const Subject&) {
       return std::string("jobs are written without dropout; leave dropout out");
     }},
    {"precision_aware_master_weights",
     [](const Subject& s) {
       return megatron_precision_aware(s) && s.plan.offload.optimizer == 0 &&
              s.plan.main_params_dtype == DType::fp32;
     },
     [](const Subject& s) {
       return fmt::format(
           "moments in {} come with the precision-aware optimizer, which keeps a 2-byte remainder "
           "of each master weight; use main_params_dtype=bf16",
           to_word(s.plan.moment_dtype));
     }},
    {"offloaded_master_weights",
     [](const Subject& s) {
       return s.plan.offload.optimizer > 0 && s.plan.main_params_dtype != DType::fp32;
     },
     [](const Subject&) {
       return std::string(
           "Megatron keeps offloaded master weights in fp32; use main_params_dtype=fp32");
     }},
    {"fsdp_states",
     [](const Subject& s) {
       return megatron::fsdp(s) &&
              (s.plan.moment_dtype != DType::fp32 || s.plan.offload.optimizer > 0 ||
               s.plan.main_params_dtype != DType::fp32 || s.plan.fsdp_shard > 0 ||
               s.plan.grad_dtype != DType::fp32);
     },
     [](const Subject&) {
       return std::string(
           "Megatron-FSDP is written with fp32 states, sharded over all of dp, on the device");
     }},
    {"gradient_format",
     [](const Subject& s) {
       const bool half = s.plan.precision == Precision::fp16;
       return s.plan.grad_dtype != DType::fp32 &&
              s.plan.grad_dtype != (half ? DType::fp16 : DType::bf16);
     },
     [](const Subject& s) {
       return fmt::format(
           "Megatron accumulates gradients in fp32 or in the format of the weights, "
           "not in {} under precision {}",
           to_word(s.plan.grad_dtype), to_word(s.plan.precision));
     }},
    {"master_weights_of_fp16",
     [](const Subject& s) {
       return s.plan.precision == Precision::fp16 && megatron_precision_aware(s) &&
              s.plan.offload.optimizer == 0 && s.plan.main_params_dtype == DType::bf16;
     },
     [](const Subject&) {
       return std::string(
           "remainders of master weights are kept for bf16 weights only; use "
           "main_params_dtype=fp16, or precision bf16");
     }},
    {"main_grads_format",
     [](const Subject& s) {
       return megatron_precision_aware(s) && s.plan.grad_dtype == DType::fp16;
     },
     [](const Subject&) {
       return std::string(
           "the precision-aware optimizer keeps gradients in fp32 or bf16 (--main-grads-dtype); "
           "use "
           "grad_dtype=fp32");
     }},
    {"unwritten_attention", [](const Subject& s) { return !unwritten_part(s.model).empty(); },
     [](const Subject& s) {
       return fmt::format("{} has {}, which qplan does not write for Megatron", s.model.name,
                          unwritten_part(s.model));
     },
     Asks::model},
    {"partly_normed_queries",
     [](const Subject& s) {
       const auto rotates = [](const LayerKind& layer) { return layer.rotates; };
       return s.model.qk_l2_norm &&
              !std::all_of(s.model.layers.begin(), s.model.layers.end(), rotates);
     },
     [](const Subject& s) {
       return fmt::format(
           "{} normalises queries and keys in the layers that rotate them, and --qk-l2-norm does "
           "so in every layer: Megatron-LM would train another model",
           s.model.name);
     },
     Asks::model},
    {"chunked_attention", [](const Subject& s) { return chunk_within(s.model, s.plan) > 0; },
     [](const Subject& s) {
       const std::int64_t chunk = chunk_within(s.model, s.plan);
       return fmt::format(
           "{} attends within chunks of {} tokens, which Megatron-LM has no flag for; use seq_len "
           "{} or less",
           s.model.name, chunk, chunk);
     },
     Asks::job},
    {"temperature_by_position",
     [](const Subject& s) {
       return s.model.temperature_step > 0 && s.plan.seq_len > s.model.temperature_step;
     },
     [](const Subject& s) {
       return fmt::format(
           "{} scales queries by their position, which Megatron-LM has no flag for; use seq_len {} "
           "or less",
           s.model.name, s.model.temperature_step);
     },
     Asks::job},
    {"scaled_inputs_of_one",
     [](const Subject& s) {
       return s.model.moe && s.model.moe->scales_inputs && s.model.moe->top_k > 1;
     },
     [](const Subject& s) {
       return fmt::format(
           "--moe-apply-probs-on-input is for one expert a token, and {} has {} of them",
           s.model.name, s.model.moe->top_k);
     },
     Asks::model},
    {"whole_rotary_base",
     [](const Subject& s) {
       return s.model.rope_theta !=
              static_cast<double>(static_cast<std::int64_t>(s.model.rope_theta));
     },
     [](const Subject& s) {
       return fmt::format("--rotary-base is a whole number, and the model's is {}",
                          s.model.rope_theta);
     },
     Asks::model},
});

}  // namespace

bool megatron_precision_aware(const Subject& s) {
  return !megatron::fsdp(s) &&
         (s.plan.offload.optimizer > 0 || s.plan.main_params_dtype != DType::fp32 ||
          s.plan.moment_dtype != DType::fp32);
}

std::span<const Limit> megatron_limits() {
  return kLimits;
}

}  // namespace qplan
