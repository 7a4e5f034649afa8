// Llama, and Mistral AI's models.

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

}  // namespace qplan::config
