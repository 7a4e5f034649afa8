#include "planner/frameworks/rl/written_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "planner/frameworks/writers.h"

namespace qplan {

WrittenStep step_to_write(const Subject& s) {
  if (s.step != nullptr) return {*s.step, s.step->job.packed};
  WrittenStep written;
  written.packs = false;
  RlJob& job = written.step.job;
  std::int64_t samples = 8;
  while (s.plan.global_batch_size % samples != 0) samples /= 2;
  job.samples = samples;
  job.prompts = s.plan.global_batch_size / samples;
  job.train_batch = s.plan.global_batch_size;
  job.prompt_len = s.plan.seq_len / 4;
  job.response.max = s.plan.seq_len - job.prompt_len;
  job.response.mean = static_cast<double>(job.response.max) / 2;
  // Engines of a node's GPUs, as many as heads and world divide by.
  RolloutLayout& layout = written.step.layout;
  layout.memory_share = 0.6;
  layout.tp = static_cast<int>(nodes_of(s).gpus);
  while (s.model.num_attention_heads % layout.tp != 0 || s.plan.world() % layout.tp != 0) {
    --layout.tp;
  }
  return written;
}

std::string hydra_text(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (!value.is_array()) return text_of(value);
  std::string text;
  for (const Json& item : value) text += (text.empty() ? "" : ",") + hydra_text(item);
  return "[" + text + "]";
}

std::string quoted_override(const std::string& word) {
  if (word.find('$') != std::string::npos) return '"' + word + '"';
  const bool plain = word.find_first_of(" []{}()*'") == std::string::npos;
  return plain ? word : "'" + word + "'";
}

std::string rl_precision_message(const Subject& s, std::string_view framework) {
  return fmt::format("qplan writes {}'s configuration for bf16, not {}", framework,
                     to_word(s.plan.precision));
}

bool has_rl_states(const Subject& s) {
  const ParallelPlan& p = s.plan;
  if (s.recipe == RecipeKind::fsdp2) {
    const DType all = p.main_params_dtype;
    return (all != DType::fp32 && all != DType::bf16) || p.moment_dtype != all ||
           p.grad_dtype != all;
  }
  // Megatron's precision-aware optimizer keeps a remainder of 16-bit master weights.
  return p.moment_dtype != DType::fp32 || p.main_params_dtype == DType::fp16 ||
         (p.offload.optimizer > 0 && p.main_params_dtype != DType::fp32) ||
         p.grad_dtype == DType::fp16 || p.main_params_dtype == DType::fp8;
}

std::string rl_states_message(const Subject&, std::string_view framework) {
  return fmt::format(
      "{} keeps master weights, moments and gradients in fp32, or all in bf16 under FSDP; use "
      "main_params_dtype, moment_dtype and grad_dtype fp32",
      framework);
}

}  // namespace qplan
