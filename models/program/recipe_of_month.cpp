// A recipe as its framework was in a month: what releases changed since.

#include <optional>

#include "models/program/recipe.h"

namespace qplan {
namespace {

// Of one expert in transformers 4's loop over all of them: its rows are looked up and taken, go
// through a product and what follows it, and are added back, a dozen kernels. Training of IBM's
// granite-3.0-3b-a800m on an A100 (40 experts, 2232 tokens a microbatch, recomputation;
// fms-acceleration, a100_80gb_moe.csv) takes 36 ms a layer, whose products are 12 grouped ones of
// ours: 75 us each on a DGX A100, whose processors take 1.3 times an H100's.
constexpr Seconds kModulesExpert = microseconds(58);

// What transformers 4 did unasked: a loop over experts, reentrant checkpoints and, where no engine
// brings an optimizer of its own, torch's AdamW over lists of parameters (Composer's
// DecoupledAdamW, in FSDP1's runs of 2023, is as many passes).
void before_transformers_5(Recipe& recipe) {
  recipe.kernels.one_product_per_expert = true;
  recipe.host.expert.product = kModulesExpert;
  recipe.host.checkpoint = Seconds(0);
  recipe.keeps.recomputes_dead_ops = true;
  recipe.keeps.keeps_fp32_logits = true;
  if (recipe.kind != RecipeKind::deepspeed) recipe.kernels.fused_adam = false;
  recipe.keeps.frozen_inputs_stay = recipe.kind == RecipeKind::fsdp1;
}

}  // namespace

Recipe recipe_of_month(RecipeKind kind, int month) {
  // The first whole months with what they name.
  constexpr int kEarlyStop = 202310, kFlash2 = 202401, kCompiledLoss = 202504,
                kChunkedLoss = 202605, kFlex = 202607;
  // PyTorch 2.11 (March 2026) is the first whose wheels have the cuDNN that its attention wants to
  // be preferred, above 9.15 (check_prefer_cudnn_attention, aten/src/ATen/native/transformers/cuda/
  // sdp_utils.cpp; huggingface/transformers pull request 48163).
  constexpr int kCudnnAttention = 202604;
  constexpr int kTransformers5 = 202602;
  // transformers 5.10 (June 2026), and 5.20 (October), which clears rows of spread experts alone.
  constexpr int kClearsRows = 202606, kClearsSpreadRows = 202611;
  constexpr int kMegatronFusedLoss = 202407, kTeLossInFp32 = 202609, kCurrentScaling = 202509;
  Recipe recipe = recipe_of(kind);
  if (month == 0) return recipe;
  if (kHuggingFace.has(kind) && month < kTransformers5) before_transformers_5(recipe);
  recipe.kernels.clears_expert_rows =
      kHuggingFace.has(kind) && month >= kClearsRows && month < kClearsSpreadRows;
  if (kHuggingFace.has(kind) && month < kCudnnAttention) {
    recipe.kernels.attention = AttentionKernel::flash2;
  }
  if (kind == RecipeKind::fsdp1) recipe.keeps.recomputes_dead_ops = month < kEarlyStop;
  if (kind == RecipeKind::fsdp1 && month < kFlash2) {
    recipe.kernels.attention = AttentionKernel::flash1;
    recipe.kernels.loss = LossKind::fused;
  }
  if (recipe.kernels.loss == LossKind::native) {
    if (month < kMegatronFusedLoss) recipe.kernels.loss = LossKind::unfused;
    recipe.keeps.te_loss_in_place = month < kTeLossInFp32;
  }
  if (month < kCurrentScaling) recipe.kernels.current_scaling = false;
  if (kind != RecipeKind::fsdp2_compile) return recipe;
  if (month < kFlex) recipe.kernels.attention = AttentionKernel::flash2;
  if (month < kChunkedLoss) {
    recipe.kernels.fused_qkv = false;
    recipe.kernels.loss = month < kCompiledLoss ? LossKind::eager : LossKind::compiled;
  }
  return recipe;
}

}  // namespace qplan
