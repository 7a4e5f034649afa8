#include "models/program/loss.h"

#include <algorithm>
#include <bit>

namespace qplan {

LossTraits traits_of(LossKind loss, const Recipe& recipe) {
  switch (loss) {
    case LossKind::by_framework:
      return traits_of(recipe.kernels.loss, recipe);
    case LossKind::eager:
      if (!recipe.keeps.keeps_fp32_logits) {
        return {.fused = false,
                .keeps_logits = false,
                .kept_bytes = 4,
                .gradient_bytes = 8,
                .split_gradient_bytes = 2};
      }
      return {.fused = false, .kept_bytes = 8, .gradient_bytes = 4, .split_gradient_bytes = 2};
    case LossKind::narrow:
      return {.fused = false, .kept_bytes = 2, .gradient_bytes = 4};
    case LossKind::unfused:
      return {.fused = false, .keeps_logits = false, .kept_bytes = 4};
    case LossKind::native:
      return {.keeps_logits = false, .kept_bytes = 4};
    case LossKind::te:
      if (recipe.keeps.te_loss_in_place) return {};
      return {.keeps_logits = false, .kept_bytes = 4};
    case LossKind::fused:
      // Hugging Face's forward hands any loss logits in fp32, a copy of all but the last token's,
      // whose gradient takes their place; backward puts it back among all (transformers 4.45,
      // modeling_llama.py).
      if (kHuggingFace.has(recipe.kind) && recipe.kernels.loss != LossKind::fused) {
        return {.keeps_logits = false, .kept_bytes = 4, .gradient_bytes = 4};
      }
      return {};
    case LossKind::compiled:
      return {};
    case LossKind::chunked:
      return {.chunks = 8};  // ChunkedLossWrapper's default
    case LossKind::liger:
      return {.by_vocabulary = true};
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

LossParts loss_parts(const ModelSpec& model, const LossTraits& loss, std::int64_t tokens) {
  const LossParts whole{1, tokens};
  if (model.num_mtp_layers > 0) return whole;
  if (loss.by_vocabulary) {
    // A part has the power of two of tokens that is no less than tokens over this ratio.
    const std::int64_t ratio = ceil_div(model.vocab_size, model.hidden_size);
    const auto rows = static_cast<std::int64_t>(
        std::bit_ceil(static_cast<std::uint64_t>(ceil_div(tokens, ratio))));
    return {ceil_div(tokens, rows), std::min(rows, tokens)};
  }
  return tokens % loss.chunks != 0 ? whole : LossParts{loss.chunks, tokens / loss.chunks};
}

}  // namespace qplan
