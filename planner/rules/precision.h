#pragma once
// Number formats of products and of states.

#include "planner/rules/degrees.h"
#include "planner/rules/rule.h"

namespace qplan::rules {

// Tokens that one rank's matrix products see.
inline std::int64_t tokens_per_rank(const ParallelPlan& p) {
  return p.micro_batch_size * p.seq_len / (std::int64_t{p.cp} * (p.sequence_parallel ? p.tp : 1));
}

constexpr bool is_low_precision(Precision p) {
  return p != Precision::bf16 && p != Precision::fp16 && p != Precision::fp32;
}

// Rows must come in multiples of this: cuBLAS and Transformer Engine's 16, mxfp8's blocks of 32.
constexpr std::int64_t token_multiple(Precision p) {
  return p == Precision::mxfp8 ? 32 : 16;
}

// A width of a rank's products that low precision does not multiply; 0: there is none. Of attention
// the plain one, whose widths are heads.
inline std::int64_t odd_width(const Case& c) {
  const std::int64_t multiple = token_multiple(c.p.precision);
  const std::int64_t head = c.m.mla ? 0 : c.m.head_dim;
  const std::int64_t queries = c.m.num_attention_heads * head / c.p.tp;
  const std::int64_t keys = c.m.num_key_value_heads * head / c.p.tp;
  const std::int64_t dense = has_dense_layer(c.m) ? c.m.intermediate_size / c.p.tp : 0;
  const std::int64_t expert = c.m.moe ? c.m.moe->moe_intermediate_size / c.p.etp : 0;
  for (const std::int64_t width : {c.m.hidden_size, queries, queries + 2 * keys, dense, expert}) {
    if (!divides(multiple, width)) return width;
  }
  return 0;
}

// AMD's GPUs report 94 (MI300) and 95 (MI350), numbers that NVIDIA has none between 90 and 100.
constexpr int capability_for(Precision p) {
  switch (p) {
    case Precision::bf16:
    case Precision::fp16:
    case Precision::fp32:
      return 0;
    case Precision::fp8:
      return 89;  // Ada and Hopper
    case Precision::mxfp8:
      return 95;  // MI350 and Blackwell
    case Precision::nvfp4:
      return 100;  // Blackwell
  }
  return 0;
}

// Transformer Engine has no mxfp8 on Blackwell's cards for PCIe.
constexpr int kNoMxfp8From = 120;
constexpr bool multiplies(int capability, Precision p) {
  if (p == Precision::mxfp8 && capability >= kNoMxfp8From) return false;
  return capability >= capability_for(p);
}

// As the vendor names it: "compute capability 9.0", "gfx942".
inline std::string named_capability(int capability) {
  const bool amd = capability > 90 && capability < 100;
  return amd ? fmt::format("gfx9{}", capability == 94 ? "42" : "50")
             : fmt::format("compute capability {}.{}", capability / 10, capability % 10);
}

// What a GPU needs for a precision, of its own vendor's: MI350 or Blackwell for mxfp8.
inline std::string capability_wanted(int capability, Precision p) {
  const int least = capability_for(p);
  const bool amd = capability > 90 && capability < 100;
  if (amd && least >= 100) return "NVIDIA's " + named_capability(least);
  const std::string wanted = named_capability(!amd && least == 95 ? 100 : least);
  const bool too_new = p == Precision::mxfp8 && capability >= kNoMxfp8From;
  return too_new
             ? fmt::format("{} to {}.{}", wanted, (kNoMxfp8From - 1) / 10, (kNoMxfp8From - 1) % 10)
             : wanted;
}

inline constexpr auto kPrecision = std::to_array<Rule>({
    {"precision_gpu", kEvery,
     [](const Case& c) {
       return c.limits.compute_capability > 0 &&
              !multiplies(c.limits.compute_capability, c.p.precision);
     },
     [](const Case& c) {
       const int capability = c.limits.compute_capability;
       const bool fp8 = c.p.precision != Precision::fp8 && multiplies(capability, Precision::fp8);
       return fmt::format("precision {} needs {}, and the GPU has {}; use {}",
                          to_word(c.p.precision), capability_wanted(capability, c.p.precision),
                          named_capability(capability),
                          fp8 ? "fp8 by another recipe, or bf16" : "bf16");
     },
     "TransformerEngine d0067d0d, transformer_engine/pytorch/quantization.py:153"},
    {"precision_available", kEvery,
     [](const Case& c) { return !precisions_of(c.recipe).has(c.p.precision); },
     [](const Case& c) {
       return not_in(c, fmt::format("precision {}", to_word(c.p.precision)),
                     "use " + words_of(precisions_of(c.recipe)));
     },
     "Megatron-LM d98e8a64, megatron/core/transformer/transformer_config.py:1527; torchtitan "
     "b5bcd76c, torchtitan/components/quantization/__init__.py; Megatron-DeepSpeed 4efb479d, "
     "megatron/arguments.py:506"},
    {"low_precision_tokens", kEvery,
     [](const Case& c) {
       return is_low_precision(c.p.precision) &&
              !divides(token_multiple(c.p.precision), tokens_per_rank(c.p));
     },
     [](const Case& c) {
       return fmt::format("precision {} needs tokens in multiples of {}, and a rank holds {}",
                          to_word(c.p.precision), token_multiple(c.p.precision),
                          tokens_per_rank(c.p));
     },
     "TransformerEngine d0067d0d, transformer_engine/pytorch/utils.py:618; TransformerEngine "
     "d0067d0d, transformer_engine/pytorch/tensor/mxfp8_tensor.py:131"},
    {"low_precision_widths", kMegatronCore,
     [](const Case& c) { return is_low_precision(c.p.precision) && odd_width(c) > 0; },
     [](const Case& c) {
       return fmt::format(
           "precision {} multiplies widths that are multiples of {}, and a rank has "
           "one of {}; use bf16, or a smaller tp",
           to_word(c.p.precision), token_multiple(c.p.precision), odd_width(c));
     },
     "TransformerEngine d0067d0d, transformer_engine/pytorch/utils.py:618; TransformerEngine "
     "d0067d0d, transformer_engine/pytorch/tensor/mxfp8_tensor.py:129"},
    {"precision_aware_optimizer", kDistributedOptimizer,
     [](const Case& c) {
       return c.p.zero == 0 &&
              (c.p.main_params_dtype != DType::fp32 || c.p.moment_dtype != DType::fp32);
     },
     [](const Case&) {
       return std::string("optimizer states below fp32 need the distributed optimizer; use zero 1");
     },
     "Megatron-LM d98e8a64, megatron/core/optimizer/optimizer_config.py:469"},
});

}  // namespace qplan::rules
