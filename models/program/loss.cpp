#include "models/program/loss.h"

namespace qplan {

LossTraits traits_of(LossKind loss, const Recipe& recipe) {
  switch (loss) {
    case LossKind::by_framework:
      return traits_of(recipe.kernels.loss, recipe);
    case LossKind::eager:
      return {.fused = false, .kept_bytes = 8, .gradient_bytes = 4, .split_gradient_bytes = 2};
    case LossKind::unfused:
      return {.fused = false, .keeps_logits = false, .kept_bytes = 4};
    case LossKind::native:
      return {.keeps_logits = false, .kept_bytes = 4};
    case LossKind::te:
      if (recipe.keeps.te_loss_in_place) return {};
      return {.keeps_logits = false, .kept_bytes = 4};
    case LossKind::fused:
    case LossKind::compiled:
      return {};
    case LossKind::chunked:
      return {.chunks = 8};  // ChunkedLossWrapper's default
  }
  return {};
}

LossKind loss_of(LossKind asked, bool deterministic, const Recipe& recipe) {
  if (asked != LossKind::by_framework) return asked;
  const bool megatron =
      recipe.kernels.loss == LossKind::native || recipe.kernels.loss == LossKind::te;
  return megatron && deterministic ? LossKind::unfused : recipe.kernels.loss;
}

LossKind loss_word(LossKind loss, bool deterministic, const Recipe& recipe) {
  const bool unasked = loss == loss_of(LossKind::by_framework, deterministic, recipe);
  return unasked ? LossKind::by_framework : loss;
}

EnumSet<LossKind> losses_of(RecipeKind recipe) {
  return recipe_of(recipe).can.losses;
}

std::int64_t loss_chunks(const ModelSpec& model, const LossTraits& loss, std::int64_t tokens) {
  return model.num_mtp_layers > 0 || tokens % loss.chunks != 0 ? 1 : loss.chunks;
}

}  // namespace qplan
