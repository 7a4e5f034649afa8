// Cohere's Command R, Command R+, Command R7B and Command A: attention and MLP side by side.

#include <fmt/format.h>

#include "models/config/architectures.h"
#include "models/config/decoder.h"

namespace qplan::config {
namespace {

// Norms are LayerNorms without biases, which have the parameters of RMSNorms and cost as much.
void read_command(JsonReader& in, double rope_theta, ModelSpec& m) {
  read_decoder(in, {.max_positions = 8192, .rope_theta = rope_theta, .tied = true}, m);
  m.norm_epsilon = in.number_or("layer_norm_eps", 0, 1, 1e-5);
  read_silu(in);
  read_attention_bias(in, false, m);
  m.parallel_mlp = m.rotary_interleaved = true;
  const double scale = in.number_or("logit_scale", 0, 1e6, 0.0625);
  if (scale != 1) m.unmodelled.push_back(fmt::format("logits scaled by {} (logit_scale)", scale));
}

}  // namespace

void read_cohere(JsonReader& in, ModelSpec& m) {
  read_command(in, 5e5, m);
  m.qk_norm = m.qk_norm_each = in.boolean_or("use_qk_norm", false);
}

// Layers that see the whole sequence do not rotate (Cohere2Attention).
void read_cohere2(JsonReader& in, ModelSpec& m) {
  read_command(in, 1e4, m);
  read_spaced_windows(in, read_window(in, 4096),
                      in.integer_or("sliding_window_pattern", 1, kMostLayers, 4), m);
  for (LayerKind& layer : m.layers) layer.rotates = layer.window > 0;
}

}  // namespace qplan::config
