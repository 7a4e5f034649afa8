// What arguments of Megatron-LM describe and no class of Hugging Face's does: grouped queries
// beside learned positions, a gate without rotation, experts without a gate. The names are Hugging
// Face's; what they name stands in one place for each part, and nothing has a default of a class.

#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "models/config/architectures.h"
#include "models/config/decoder.h"

namespace qplan::config {
namespace {

template <class Word, std::size_t N>
Word word_in(JsonReader& in, std::string_view key,
             const std::array<std::pair<std::string_view, Word>, N>& words) {
  const std::string said = in.string(key);
  std::string known;
  for (const auto& [word, value] : words) {
    if (word == said) return value;
    known += (known.empty() ? "" : ", ") + std::string(word);
  }
  in.fail(key, fmt::format("must be one of {}", known));
}

MoeSpec experts_in(JsonReader& in) {
  MoeSpec moe;
  moe.num_experts = in.integer("num_experts", 1, kMostExperts);
  moe.top_k = in.integer("num_experts_per_tok", 1, moe.num_experts);
  moe.moe_intermediate_size = in.integer("moe_intermediate_size", 1, 4 * kWidest);
  moe.shared_expert_intermediate_size =
      in.integer_or("shared_expert_intermediate_size", 0, 4 * kWidest, 0);
  moe.expert_bias = in.boolean("mlp_bias");
  return moe;
}

}  // namespace

void read_megatron_gpt(JsonReader& in, ModelSpec& m) {
  m.hidden_size = in.integer("hidden_size", 1, kWidest);
  m.num_layers = in.integer("num_hidden_layers", 1, kMostLayers);
  m.num_attention_heads = in.integer("num_attention_heads", 1, kMostHeads);
  m.num_key_value_heads = in.integer("num_key_value_heads", 1, m.num_attention_heads);
  if (m.num_attention_heads % m.num_key_value_heads != 0) {
    in.fail("num_key_value_heads", fmt::format("({}) must divide num_attention_heads ({})",
                                               m.num_key_value_heads, m.num_attention_heads));
  }
  m.head_dim = in.integer("head_dim", 1, kWidest);
  m.intermediate_size = in.integer("intermediate_size", 1, 4 * kWidest);
  m.vocab_size = in.integer("vocab_size", 1, kMostWords);
  m.max_position_embeddings = in.integer("max_position_embeddings", 1, kMostPositions);
  m.mlp =
      word_in(in, "hidden_act",
              std::to_array<std::pair<std::string_view, MlpKind>>(
                  {{"silu", MlpKind::swiglu}, {"gelu", MlpKind::gelu}, {"relu2", MlpKind::relu2}}));
  m.position = word_in(in, "position_embedding",
                       std::to_array<std::pair<std::string_view, PositionEmbedding>>(
                           {{"rope", PositionEmbedding::rope},
                            {"learned", PositionEmbedding::learned},
                            {"none", PositionEmbedding::none}}));
  m.norm = word_in(in, "normalization",
                   std::to_array<std::pair<std::string_view, Norm>>(
                       {{"LayerNorm", Norm::layer_norm}, {"RMSNorm", Norm::rms_norm}}));
  m.rope_theta = in.number_or("rope_theta", 1, 1e12, 10000);
  m.norm_epsilon = in.number_or("norm_epsilon", 0, 1, 1e-5);
  m.qk_norm = in.boolean_or("qk_norm", false);
  m.qkv_bias = in.boolean("qkv_bias");
  m.attention_output_bias = in.boolean("attention_bias");
  m.mlp_bias = in.boolean("mlp_bias");
  m.tie_word_embeddings = in.boolean("tie_word_embeddings");
  m.layers.assign(static_cast<std::size_t>(m.num_layers), LayerKind{});
  if (!in.has("num_experts")) return;
  m.moe = experts_in(in);
  for (LayerKind& layer : m.layers) layer.moe = true;
}

}  // namespace qplan::config
