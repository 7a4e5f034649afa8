// Llama, Mistral AI's models, and what others built on their classes.

#include "models/config/architectures.h"
#include "models/config/decoder.h"

namespace qplan::config {

void read_llama(JsonReader& in, ModelSpec& m) {
  read_decoder(in, {.max_positions = 2048}, m);
  read_silu(in);
  read_attention_bias(in, false, m);
  m.mlp_bias = in.boolean_or("mlp_bias", false);
}

void read_mistral(JsonReader& in, ModelSpec& m) {
  read_decoder(in, {.kv_heads = 8, .max_positions = 131072}, m);
  read_silu(in);
  read_windows(
      in, read_window(in, 4096), [](std::int64_t) { return true; }, m);
}

void read_mixtral(JsonReader& in, ModelSpec& m) {
  read_decoder(
      in, {.kv_heads = 8, .max_positions = 131072, .rope_theta = 1e6, .norm_epsilon = 1e-5}, m);
  read_silu(in);
  read_windows(
      in, read_window(in, 0), [](std::int64_t) { return true; }, m);
  m.moe = read_experts(in, {"num_local_experts", "num_experts"});
  m.moe->moe_intermediate_size = m.intermediate_size;
  for (LayerKind& layer : m.layers) layer.moe = true;
}

// Mixtral with DeepSeek-V3's router, and norms of queries and keys over all heads together
// (MiniMaxM2Attention, from FlexOlmo's). The published checkpoints' num_mtp_modules are weights
// that the class does not have.
void read_minimax_m2(JsonReader& in, ModelSpec& m) {
  read_decoder(in, {.kv_heads = 8, .head_dim = 128, .max_positions = 196608, .rope_theta = 5e6}, m);
  read_silu(in);
  if (in.has("rotary_dim")) {
    m.rotary_fraction = static_cast<double>(in.integer("rotary_dim", 1, m.head_dim)) /
                        static_cast<double>(m.head_dim);
  }
  m.qk_norm = m.qk_norm_whole = in.boolean_or("use_qk_norm", true);
  require_word(in, "qk_norm_type", "per_layer", {"per_layer"});
  require_word(in, "scoring_func", "sigmoid", {"sigmoid"});
  m.moe = read_experts(in, {"num_local_experts", "num_experts"});
  m.moe->moe_intermediate_size = m.intermediate_size;
  m.moe->sigmoid_scores = true;
  m.moe->router_bias = in.boolean_or("use_routing_bias", true);
  for (LayerKind& layer : m.layers) layer.moe = true;
}

void read_seed_oss(JsonReader& in, ModelSpec& m) {
  read_decoder(in, {.kv_heads = 8, .head_dim = 128, .max_positions = 524288}, m);
  read_silu(in);
  m.qkv_bias = in.boolean_or("attention_bias", true);
  m.attention_output_bias = in.boolean_or("attention_out_bias", false);
  m.mlp_bias = in.boolean_or("mlp_bias", false);
}

// Llama with q|k|v and gate|up in one tensor each. Its rotary scaling is "longrope" alone, which
// older files call "su" or "yarn" (Phi3Config.convert_rope_params_to_dict).
void read_phi3(JsonReader& in, ModelSpec& m) {
  read_decoder(in, {.max_positions = 4096, .norm_epsilon = 1e-5}, m);
  read_silu(in);
  if (m.rope_scaling) m.rope_scaling = RopeScaling{};
  read_windows(
      in, read_window(in, 0), [](std::int64_t) { return true; }, m);
}

// Its own code's keys and transformers' (attribute_map of InternLM3Config): the first bias is that
// of q, k and v, the other that of every linear layer behind them.
void read_internlm3(JsonReader& in, ModelSpec& m) {
  read_decoder(in, {.kv_heads = 2, .head_dim = 128, .max_positions = 32768, .norm_epsilon = 1e-5},
               m);
  read_silu(in);
  m.qkv_bias = in.boolean_or("qkv_bias", in.boolean_or("attention_bias", false));
  m.attention_output_bias = m.mlp_bias = in.boolean_or("bias", in.boolean_or("mlp_bias", false));
}

}  // namespace qplan::config
