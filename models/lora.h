#pragma once
// Low-rank adaptation (LoRA, arXiv 2106.09685): beside a frozen weight W (out, in) stand two
// trained matrices, A (rank, in) and B (out, rank), and y = x W^T + alpha/rank (x A^T) B^T.

#include <cstdint>

#include "models/enum_set.h"
#include "models/words.h"

namespace qplan {

// Which linear layers have adapters, by Hugging Face's module names (PEFT's target_modules).
// `experts`: the three matrices of every routed expert, each with adapters of its own; in_proj and
// out_proj are those of Gated DeltaNet and Mamba-2.
enum class LoraTarget : std::uint8_t {
  q_proj,
  k_proj,
  v_proj,
  o_proj,
  gate_proj,
  up_proj,
  down_proj,
  experts,
  q_a_proj,
  q_b_proj,
  kv_a_proj,
  kv_b_proj,
  in_proj,
  out_proj
};

template <>
struct Words<LoraTarget> {
  static constexpr std::string_view what = "LoRA target";
  static constexpr std::string_view empty = "all-linear";  // an empty set of these
  static constexpr auto table =
      std::to_array<std::pair<LoraTarget, std::string_view>>({{LoraTarget::q_proj, "q_proj"},
                                                              {LoraTarget::k_proj, "k_proj"},
                                                              {LoraTarget::v_proj, "v_proj"},
                                                              {LoraTarget::o_proj, "o_proj"},
                                                              {LoraTarget::gate_proj, "gate_proj"},
                                                              {LoraTarget::up_proj, "up_proj"},
                                                              {LoraTarget::down_proj, "down_proj"},
                                                              {LoraTarget::experts, "experts"},
                                                              {LoraTarget::q_a_proj, "q_a_proj"},
                                                              {LoraTarget::q_b_proj, "q_b_proj"},
                                                              {LoraTarget::kv_a_proj, "kv_a_proj"},
                                                              {LoraTarget::kv_b_proj, "kv_b_proj"},
                                                              {LoraTarget::in_proj, "in_proj"},
                                                              {LoraTarget::out_proj, "out_proj"}});
};

using LoraTargets = EnumSet<LoraTarget>;

// What `lora_targets` means where it is empty: every linear layer but those of routed experts
// (PEFT's "all-linear", which with transformers 5 does not reach them).
constexpr LoraTargets all_linear() {
  LoraTargets all;
  for (const auto& [target, word] : Words<LoraTarget>::table) all.add(target);
  return all.remove(LoraTarget::experts);
}

// What frozen weights of linear layers lie in while adapters are trained. `computed`: the format of
// activations; fp32: as FSDP keeps shards that it was given so, gathered in the format of
// activations. The others are made into that format before each product: nf4 as bitsandbytes has it
// (QLoRA, arXiv 2305.14314), nf4_double with its scales quantised, too; int8 (LLM.int8); int4 in
// groups of 128 (GPTQ).
enum class FrozenFormat : std::uint8_t { computed, fp32, int8, int4, nf4, nf4_double };

template <>
struct Words<FrozenFormat> {
  static constexpr std::string_view what = "format of frozen weights";
  static constexpr auto table = std::to_array<std::pair<FrozenFormat, std::string_view>>(
      {{FrozenFormat::computed, "computed"},
       {FrozenFormat::fp32, "fp32"},
       {FrozenFormat::int8, "int8"},
       {FrozenFormat::int4, "int4"},
       {FrozenFormat::nf4, "nf4"},
       {FrozenFormat::nf4_double, "nf4-double"}});
};

constexpr bool is_quantized(FrozenFormat format) {
  return format != FrozenFormat::computed && format != FrozenFormat::fp32;
}

// Of a quantised number with its share of scales. nf4: an fp32 scale for each 64 numbers
// (bitsandbytes/functional.py, quantize_4bit); doubled: 8 bits for each 64 and an fp32 number for
// each 256 of those; int8: a number a row, left out; int4: a 16-bit scale and a 4-bit zero for
// each 128 (AutoGPTQ's qzeros and scales).
constexpr double quantized_bytes(FrozenFormat format) {
  switch (format) {
    case FrozenFormat::computed:
    case FrozenFormat::fp32:
      return 0;
    case FrozenFormat::int8:
      return 1;
    case FrozenFormat::int4:
      return 0.5 + 2.5 / 128;
    case FrozenFormat::nf4:
      return 0.5 + 4.0 / 64;
    case FrozenFormat::nf4_double:
      return 0.5 + 1.0 / 64 + 4.0 / (64 * 256);
  }
  return 0;
}

// What adapters lie in. `computed`: the format of activations, with whatever master copy the plan
// keeps; fp32: in fp32 alone, made into the format of activations for each product (PEFT's
// autocast_adapter_dtype, and torch's autocast around the products).
enum class AdapterFormat : std::uint8_t { computed, fp32 };

template <>
struct Words<AdapterFormat> {
  static constexpr std::string_view what = "format of adapters";
  static constexpr auto table = std::to_array<std::pair<AdapterFormat, std::string_view>>(
      {{AdapterFormat::computed, "computed"}, {AdapterFormat::fp32, "fp32"}});
};

// Of what size and where. `rank` 0: no adapters, every weight is trained.
struct Lora {
  int rank = 0;
  LoraTargets targets;
  // As Megatron-Bridge makes them: one beside weights that are packed as one layer (q, k, v), if
  // all of those are targets; A and B both split over tensor parallelism; and one beside all
  // experts of a rank, of which there are so many (0: one an expert).
  bool parallel = false;
  int expert_copies = 0;
  // Weight-decomposed (DoRA, arXiv 2402.09353): a trained magnitude m beside each row of W, and
  // y = m / |W + alpha/rank B A| (W + alpha/rank B A) x, whose norms of rows get no gradient.
  bool magnitudes = false;
  [[nodiscard]] constexpr bool has(LoraTarget target) const {
    return (targets.empty() ? all_linear() : targets).has(target);
  }
};

}  // namespace qplan
