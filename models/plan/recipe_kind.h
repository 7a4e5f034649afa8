#pragma once
// Whose implementation of a step is predicted: the names of `--framework`.

#include <cstdint>

#include "models/enum_set.h"
#include "models/words.h"

namespace qplan {

enum class RecipeKind : std::uint8_t {
  megatron,
  megatron_legacy,
  megatron_deepspeed,
  megatron_fsdp,
  deepspeed,
  ddp,
  fsdp1,
  fsdp2,
  fsdp2_compile,
  nanotron,
  dualpipe,
  qplan
};

template <>
struct Words<RecipeKind> {
  static constexpr std::string_view what = "framework";
  static constexpr auto table = std::to_array<std::pair<RecipeKind, std::string_view>>(
      {{RecipeKind::megatron, "megatron"},
       {RecipeKind::megatron_legacy, "megatron-legacy"},
       {RecipeKind::megatron_deepspeed, "megatron-deepspeed"},
       {RecipeKind::megatron_fsdp, "megatron-fsdp"},
       {RecipeKind::deepspeed, "deepspeed"},
       {RecipeKind::ddp, "ddp"},
       {RecipeKind::fsdp1, "fsdp1"},
       {RecipeKind::fsdp2, "fsdp2"},
       {RecipeKind::fsdp2_compile, "fsdp2-compile"},
       {RecipeKind::nanotron, "nanotron"},
       {RecipeKind::dualpipe, "dualpipe"},
       {RecipeKind::qplan, "qplan"}});
};

using RecipeSet = EnumSet<RecipeKind>;

constexpr RecipeSet all_recipes() {
  RecipeSet set;
  for (const auto& [kind, word] : Words<RecipeKind>::table) set.add(kind);
  return set;
}

// Families of implementations that share what a word or a rule is about. A new recipe stands in
// those that it belongs to (recipe.cpp holds its row to them); words and rules name one by itself
// only where it is an exception.
inline constexpr RecipeSet kEvery = all_recipes();
// Megatron-Core, by what data parallelism shards: the optimizer alone, or parameters, too.
inline constexpr RecipeSet kDistributedOptimizer = set_of(RecipeKind::megatron);
inline constexpr RecipeSet kMegatronFsdp = set_of(RecipeKind::megatron_fsdp);
inline constexpr RecipeSet kMegatronCore = kDistributedOptimizer | kMegatronFsdp;
// ... and our own executor, which cuts layers and experts as Megatron-Core does.
inline constexpr RecipeSet kCoreAndOwn = kMegatronCore | set_of(RecipeKind::qplan);
// Megatron-LM of 2021-22, and what DeepSpeed made of it.
inline constexpr RecipeSet kEarlyMegatron =
    set_of(RecipeKind::megatron_legacy, RecipeKind::megatron_deepspeed);
inline constexpr RecipeSet kDeepSpeed =
    set_of(RecipeKind::deepspeed, RecipeKind::megatron_deepspeed);
// PyTorch's FSDP; of the second one parameters are DTensors.
inline constexpr RecipeSet kDTensors = set_of(RecipeKind::fsdp2, RecipeKind::fsdp2_compile);
inline constexpr RecipeSet kTorch = kDTensors | set_of(RecipeKind::fsdp1);
// Hugging Face's modules, run operation by operation.
inline constexpr RecipeSet kHuggingFace =
    set_of(RecipeKind::deepspeed, RecipeKind::ddp, RecipeKind::fsdp1, RecipeKind::fsdp2);
inline constexpr RecipeSet kFsdpOfModules = kTorch & kHuggingFace;
// Of activations only what recomputation begins with may lie on the host.
inline constexpr RecipeSet kOffloadsCheckpoints = kDeepSpeed | kHuggingFace | kTorch;

}  // namespace qplan
