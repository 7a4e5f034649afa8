// Qwen3-Next and Qwen3.5: Gated DeltaNet in three layers of four, attention with a gated output in
// the fourth.

#include <fmt/format.h>

#include "models/config/architectures.h"
#include "models/config/decoder.h"
#include "models/error.h"

namespace qplan::config {
namespace {

DeltaNetSpec read_delta_net(JsonReader& in) {
  DeltaNetSpec d;
  d.num_key_heads = in.integer_or("linear_num_key_heads", 1, kMostHeads, 16);
  d.num_value_heads = in.integer_or("linear_num_value_heads", 1, kMostHeads, 32);
  d.key_head_dim = in.integer_or("linear_key_head_dim", 1, kMostHeads, 128);
  d.value_head_dim = in.integer_or("linear_value_head_dim", 1, kMostHeads, 128);
  d.conv_kernel = in.integer_or("linear_conv_kernel_dim", 1, 1024, 4);
  if (d.num_value_heads % d.num_key_heads != 0) {
    in.fail("linear_num_value_heads",
            fmt::format("({}) must be a multiple of linear_num_key_heads ({})", d.num_value_heads,
                        d.num_key_heads));
  }
  if (d.key_dim() > kWidest || d.value_dim() > kWidest) {
    in.fail("linear_num_value_heads",
            fmt::format("and the head dims make {} key and {} value columns, more than {}",
                        d.key_dim(), d.value_dim(), kWidest));
  }
  return d;
}

// layer_types, or without it every full_attention_interval-th layer attends.
void read_mixers(JsonReader& in, ModelSpec& m) {
  const std::int64_t interval = in.integer_or("full_attention_interval", 1, kMostLayers, 4);
  if (!in.has("layer_types")) {
    for (std::size_t i = 0; i < m.layers.size(); ++i) {
      const bool attends = (static_cast<std::int64_t>(i) + 1) % interval == 0;
      m.layers[i].mixer = attends ? Mixer::attention : Mixer::delta_net;
    }
    return;
  }
  const Json& types = read_layer_types(in, m.layers.size());
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    const bool linear = types[i] == "linear_attention";
    m.layers[i].mixer = linear ? Mixer::delta_net : Mixer::attention;
    if (linear || types[i] == "full_attention") continue;
    in.fail("layer_types", fmt::format("holds {}; only linear_attention and full_attention are "
                                       "modelled",
                                       shown(types[i].dump())));
  }
}

void read_hybrid(JsonReader& in, Defaults defaults, ModelSpec& m) {
  m.rotary_fraction = 0.25;
  defaults.head_dim = 256;
  read_decoder(in, defaults, m);
  read_silu(in);
  read_attention_bias(in, false, m);
  m.qk_norm = m.attention_output_gate = m.zero_centered_norms = true;
  m.delta_net = read_delta_net(in);
  read_mixers(in, m);
}

// Experts in every layer that read_qwen_moe() finds, and a shared one behind a gate.
void read_hybrid_experts(JsonReader& in, ModelSpec& m) {
  read_qwen_moe(in, m);
  m.moe->shared_expert_intermediate_size =
      in.integer_or("shared_expert_intermediate_size", 0, kWidest, 512);
  m.moe->shared_expert_gate = true;
}

}  // namespace

void read_qwen3_next(JsonReader& in, ModelSpec& m) {
  read_hybrid(in, {.kv_heads = 2, .intermediate = 5632}, m);
  read_hybrid_experts(in, m);
  m.moe->norm_topk_prob = in.boolean_or("norm_topk_prob", true);
}

// Multi-token prediction is in the config; its layer attends, and shares embedding and head.
void read_qwen3_5_text(JsonReader& in, ModelSpec& m) {
  read_hybrid(in, {.kv_heads = 4}, m);
  m.delta_net->packed_projections = false;
  m.num_mtp_layers = in.integer_or("mtp_num_hidden_layers", 0, 1, 0);
}

void read_qwen3_5_moe_text(JsonReader& in, ModelSpec& m) {
  // No layer has a dense MLP.
  read_hybrid(in, {.kv_heads = 2, .intermediate = 512}, m);
  m.delta_net->packed_projections = false;
  read_hybrid_experts(in, m);
  m.num_mtp_layers = in.integer_or("mtp_num_hidden_layers", 0, 1, 0);
}

void read_qwen3_5(JsonReader& in, ModelSpec& m) {
  read_text_alone(in, read_qwen3_5_text, m);
}

void read_qwen3_5_moe(JsonReader& in, ModelSpec& m) {
  read_text_alone(in, read_qwen3_5_moe_text, m);
}

}  // namespace qplan::config
