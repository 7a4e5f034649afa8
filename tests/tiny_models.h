#pragma once
// Models for tests, with what the built-in tiny ones do not have.

#include <utility>
#include <vector>

#include "models/model_spec.h"

namespace qplan {

inline ModelSpec tied_model() {
  ModelSpec m = load_model("tiny");
  m.name = "tiny, tied";
  m.tie_word_embeddings = true;
  return m;
}

// With GPT-2's parts: LayerNorm, GELU, learned positions, biases but those of the keys, whose
// gradient is 0 in exact arithmetic (each shifts all scores of a query alike).
inline ModelSpec tied_gpt_model() {
  ModelSpec m = tied_model();
  m.name = "tiny, tied, of GPT-2's parts";
  m.norm = Norm::layer_norm;
  m.mlp = MlpKind::gelu;
  m.position = PositionEmbedding::learned;
  m.max_position_embeddings = 48;
  m.attention_output_bias = m.mlp_bias = true;
  m.qk_norm = false;
  return m;
}

// Multi-token prediction, with a weight of its loss that no default has.
inline ModelSpec predicting(ModelSpec m) {
  m.name += ", predicting two tokens";
  m.num_mtp_layers = 1;
  m.mtp_loss_weight = 0.3;
  return m;
}
inline ModelSpec predicting_model() {
  return predicting(load_model("tiny-mla"));
}

// As Qwen3-VL's smaller models.
inline ModelSpec dense_vision_model() {
  ModelSpec m = load_model("tiny-vl");
  m.name = "tiny-vl, dense";
  m.architecture = "qwen3_vl";
  m.moe.reset();
  for (LayerKind& layer : m.layers) layer.moe = false;
  return m;
}

// With an auxiliary loss.
inline ModelSpec balanced_model() {
  ModelSpec m = load_model("tiny-moe");
  m.name = "tiny-moe, balanced";
  m.moe->aux_loss_coefficient = 0.01;
  return m;
}

// With gpt-oss's learned sinks, sliding windows and biases.
inline ModelSpec biased_model() {
  ModelSpec m = load_model("tiny-moe");
  m.name = "tiny-moe, biased";
  m.architecture = "gpt_oss";
  m.qk_norm = false;
  m.attention_sinks = m.qkv_bias = m.attention_output_bias = true;
  m.moe->expert_bias = m.moe->router_bias = true;
  m.layers[1].window = m.layers[3].window = 8;
  return m;
}

// With Qwen2-MoE's gated shared expert.
inline ModelSpec gated_model() {
  ModelSpec m = load_model("tiny-moe");
  m.name = "tiny-moe, gated";
  m.moe->shared_expert_intermediate_size = 64;
  m.moe->shared_expert_gate = true;
  return m;
}

// With Llama 4's parts: chunks that do not divide a sequence, layers that rotate neighbouring
// numbers and norm queries and keys without weights, layers that do neither, experts that read
// scaled tokens.
inline ModelSpec chunked_model() {
  ModelSpec m = load_model("tiny-moe");
  m.name = "tiny-moe, in chunks";
  m.qk_norm = false;
  m.qk_l2_norm = m.rotary_interleaved = true;
  m.temperature_step = 4;
  m.moe->scales_inputs = m.moe->sigmoid_scores = true;
  m.moe->norm_topk_prob = false;
  m.moe->shared_expert_intermediate_size = 32;
  m.layers[0].moe = m.layers[3].moe = false;
  m.layers[1].rotates = m.layers[3].rotates = false;
  m.layers[0].chunk = m.layers[2].chunk = 12;
  return m;
}

// As ERNIE 4.5's dense models: neighbouring numbers turn, packed with what becomes values.
inline ModelSpec rotating_neighbours_model() {
  ModelSpec m = load_model("tiny");
  m.name = "tiny, turning neighbours";
  m.qk_norm = false;
  m.rotary_interleaved = true;
  return m;
}

// With Qwen3-Next's: Gated DeltaNet, attention behind a gate, norms around zero.
inline ModelSpec delta_net_model() {
  ModelSpec m = gated_model();
  m.name = "tiny-moe, with Gated DeltaNet";
  m.delta_net = DeltaNetSpec{
      .num_key_heads = 4, .num_value_heads = 8, .key_head_dim = 12, .value_head_dim = 8};
  m.attention_output_gate = m.zero_centered_norms = true;
  m.rotary_fraction = 0.25;
  m.layers[0].mixer = m.layers[2].mixer = Mixer::delta_net;
  m.layers[0].moe = m.layers[3].moe = false;
  return m;
}

// The same with widths that kernels take.
inline ModelSpec wide_delta_net_model() {
  ModelSpec m = delta_net_model();
  m.name += ", wide";
  m.head_dim = 64;
  m.delta_net->key_head_dim = 16;
  m.delta_net->value_head_dim = 24;
  return m;
}

// With Nemotron 3's: layers of Mamba-2, of attention without positions, of an MLP or of experts
// behind a latent projection.
inline ModelSpec mamba_model() {
  ModelSpec m = load_model("tiny-moe");
  m.name = "tiny-moe, with Mamba-2";
  m.mamba =
      MambaSpec{.num_heads = 8, .head_dim = 8, .num_groups = 4, .state_size = 6, .step_min = 1e-3};
  m.position = PositionEmbedding::none;
  m.mlp = MlpKind::relu2;
  m.qk_norm = false;
  m.moe->sigmoid_scores = m.moe->router_bias = true;
  m.moe->latent_size = 24;
  m.moe->shared_expert_intermediate_size = 32;
  m.moe->routed_scaling_factor = 1.5;
  m.layers = {{.mixer = Mixer::mamba, .mlp = false},
              {.mixer = Mixer::none},
              {.mixer = Mixer::attention, .mlp = false},
              {.moe = true, .mixer = Mixer::none}};
  return m;
}

// The same with widths that kernels take.
inline ModelSpec wide_mamba_model() {
  ModelSpec m = mamba_model();
  m.name += ", wide";
  m.mamba->head_dim = 16;
  m.mamba->state_size = 24;
  return m;
}

// With as many layers, heads and experts, each a quarter as large: for tests of many plans.
inline ModelSpec smaller(ModelSpec m) {
  m.name += ", smaller";
  m.hidden_size = 32;
  m.intermediate_size = 32;
  m.vocab_size = 120;
  m.head_dim = 8;
  if (m.mla) {
    m.mla = {.q_lora_rank = 12,
             .kv_lora_rank = 8,
             .qk_nope_head_dim = 6,
             .qk_rope_head_dim = 2,
             .v_head_dim = 4};
  }
  if (m.moe) {
    m.moe->moe_intermediate_size = 16;
    if (m.moe->shared_expert_intermediate_size > 0) m.moe->shared_expert_intermediate_size = 16;
  }
  if (m.delta_net) m.delta_net->key_head_dim = m.delta_net->value_head_dim = 4;
  if (m.mamba) m.mamba->head_dim = m.mamba->state_size = 4;
  if (m.vision) {
    m.vision->hidden_size = m.vision->intermediate_size = 16;
    m.vision->out_hidden_size = m.hidden_size;
    m.vision->mrope_section = {2, 1, 1};
  }
  return m;
}

// One of every kind.
inline std::vector<ModelSpec> tiny_models() {
  std::vector<ModelSpec> models = {
      biased_model(),         gated_model(),          load_model("tiny"),
      load_model("tiny-moe"), load_model("tiny-mla"), tied_model(),
      balanced_model(),       tied_gpt_model(),       predicting_model(),
      load_model("tiny-vl"),  dense_vision_model(),   chunked_model(),
      delta_net_model(),      mamba_model(),          predicting(delta_net_model())};
  for (ModelSpec& model : models) model = smaller(std::move(model));
  return models;
}

}  // namespace qplan
