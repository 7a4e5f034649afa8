// Models with norms behind attention and MLP, on what they add to the residual stream: Gemma 3 and
// GLM-4, which have norms before them too, and OLMo 2 and 3, which have none.

#include "models/config/architectures.h"
#include "models/config/decoder.h"

namespace qplan::config {
namespace {

// A cap on scores or logits: x becomes cap * tanh(x / cap).
void read_cap(JsonReader& in, std::string_view key, std::string_view of, ModelSpec& m) {
  if (in.number_or(key, 0, 1e6, 0) > 0) {
    m.unmodelled.push_back("a cap on " + std::string(of) + " (" + std::string(key) + ")");
  }
}

// Norms of queries and keys see all heads together.
void read_olmo(JsonReader& in, double rope_theta, ModelSpec& m) {
  read_decoder(in, {.max_positions = 2048, .rope_theta = rope_theta, .norm_epsilon = 1e-5}, m);
  read_silu(in);
  read_attention_bias(in, false, m);
  m.qk_norm = m.qk_norm_whole = true;
  m.norm_place = NormPlace::behind;
}

}  // namespace

// Published files of the larger models leave out what is the class's default, the vocabulary and
// the heads of the 4B model included.
void read_gemma3_text(JsonReader& in, ModelSpec& m) {
  read_decoder(in,
               {.heads = 8,
                .vocab = 262208,
                .kv_heads = 4,
                .head_dim = 256,
                .max_positions = 131072,
                .rope_theta = 1e6,
                .tied = true},
               m);
  require_word(in, "hidden_activation", "gelu_pytorch_tanh", {"gelu_pytorch_tanh"});
  read_attention_bias(in, false, m);
  m.gelu_gate = m.qk_norm = m.zero_centered_norms = true;
  m.norm_place = NormPlace::both;
  if (in.boolean_or("use_bidirectional_attention", false)) {
    in.fail("use_bidirectional_attention", "is true; only causal decoders are modelled");
  }
  read_spaced_windows(in, read_window(in, 4096),
                      in.integer_or("sliding_window_pattern", 1, kMostLayers, 6), m);
  read_cap(in, "final_logit_softcapping", "logits", m);
  read_cap(in, "attn_logit_softcapping", "attention's scores", m);
}

void read_gemma3(JsonReader& in, ModelSpec& m) {
  read_text_alone(in, read_gemma3_text, m);
}

// q, k and v have biases, the output has none (Glm4Attention).
void read_glm4(JsonReader& in, ModelSpec& m) {
  m.rotary_fraction = 0.5;
  read_decoder(
      in, {.kv_heads = 2, .head_dim = 128, .max_positions = 131072, .norm_epsilon = 1.5625e-7}, m);
  read_silu(in);
  m.qkv_bias = in.boolean_or("attention_bias", true);
  m.rotary_interleaved = true;
  m.norm_place = NormPlace::both;
}

void read_olmo2(JsonReader& in, ModelSpec& m) {
  read_olmo(in, 1e4, m);
}

void read_olmo3(JsonReader& in, ModelSpec& m) {
  read_olmo(in, 5e5, m);
  read_spaced_windows(in, read_window(in, 4096), 4, m);
}

}  // namespace qplan::config
