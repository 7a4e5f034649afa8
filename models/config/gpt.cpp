// GPT-2, gpt-oss, and Nemotron.

#include <fmt/format.h>

#include "models/config/architectures.h"
#include "models/config/decoder.h"

namespace qplan::config {

void read_gpt2(JsonReader& in, ModelSpec& m) {
  m.hidden_size = in.integer("n_embd", 1, kWidest);
  m.num_layers = in.integer("n_layer", 1, kMostLayers);
  m.num_attention_heads = m.num_key_value_heads = in.integer("n_head", 1, kMostHeads);
  m.vocab_size = in.integer("vocab_size", 1, kMostWords);
  m.max_position_embeddings = in.integer_or("n_positions", 1, kMostPositions, 1024);
  m.intermediate_size = in.integer_or("n_inner", 1, 4 * kWidest, 4 * m.hidden_size);
  m.tie_word_embeddings = in.boolean_or("tie_word_embeddings", true);
  m.norm_epsilon = in.number_or("layer_norm_epsilon", 0, 1, 1e-5);
  require_word(in, "activation_function", "gelu_new",
               {"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"});
  if (m.hidden_size % m.num_attention_heads != 0) {
    in.fail("n_embd", fmt::format("({}) must be a multiple of n_head ({})", m.hidden_size,
                                  m.num_attention_heads));
  }
  m.head_dim = m.hidden_size / m.num_attention_heads;
  m.mlp = MlpKind::gelu;
  m.norm = Norm::layer_norm;
  m.position = PositionEmbedding::learned;
  m.qkv_bias = m.attention_output_bias = m.mlp_bias = true;
  m.layers.assign(static_cast<std::size_t>(m.num_layers), LayerKind{});
}

void read_gpt_oss(JsonReader& in, ModelSpec& m) {
  read_decoder(in,
               {.kv_heads = 8,
                .head_dim = 64,
                .max_positions = 131072,
                .rope_theta = 150000,
                .norm_epsilon = 1e-5},
               m);
  if (!in.has("rope_parameters") && !in.has("rope_scaling")) {
    m.rope_scaling = RopeScaling{
        .kind = RopeScalingKind::yarn, .factor = 32, .original_positions = 4096, .truncate = false};
  }
  read_silu(in);
  read_attention_bias(in, true, m);
  m.attention_sinks = true;
  read_windows(
      in, read_window(in, 128), [](std::int64_t i) { return i % 2 == 0; }, m);
  m.moe = read_experts(in, {"num_local_experts", "num_experts"});
  m.moe->moe_intermediate_size = m.intermediate_size;
  m.moe->router_bias = m.moe->expert_bias = true;
  for (LayerKind& layer : m.layers) layer.moe = true;
}

void read_nemotron(JsonReader& in, ModelSpec& m) {
  m.rotary_fraction = 0.5;
  read_decoder(in, {.max_positions = 4096}, m);
  require_word(in, "hidden_act", "relu2", {"relu2"});
  m.norm_epsilon = in.number_or("norm_eps", 0, 1, 1e-5);
  read_attention_bias(in, false, m);
  m.mlp_bias = in.boolean_or("mlp_bias", false);
  m.mlp = MlpKind::relu2;
  m.norm = Norm::layer_norm;  // LayerNorm1p: weights around zero, and a bias
}

}  // namespace qplan::config
