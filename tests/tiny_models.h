#pragma once
// Models for tests, with what the built-in tiny ones do not have.

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
inline ModelSpec predicting_model() {
  ModelSpec m = load_model("tiny-mla");
  m.name = "tiny-mla, predicting two tokens";
  m.num_mtp_layers = 1;
  m.mtp_loss_weight = 0.3;
  return m;
}

}  // namespace qplan
