// How many parameters one rank holds of each kind of block.

#include "models/program/state_builder.h"

namespace qplan {
namespace {

std::int64_t norm_parameters(const ModelSpec& m, std::int64_t width) {
  return m.norm == Norm::layer_norm ? 2 * width : width;
}

std::int64_t attention_parameters(const ModelSpec& m, int tp) {
  const std::int64_t h = m.hidden_size;
  if (m.mla) {
    const MlaSpec& a = *m.mla;
    const std::int64_t qk = a.qk_nope_head_dim + a.qk_rope_head_dim;
    const std::int64_t heads = m.num_attention_heads / tp;
    const std::int64_t q = a.q_lora_rank > 0
                               ? h * a.q_lora_rank + a.q_lora_rank + a.q_lora_rank * heads * qk
                               : h * heads * qk;
    const std::int64_t kv = h * (a.kv_lora_rank + a.qk_rope_head_dim) + a.kv_lora_rank +
                            a.kv_lora_rank * heads * (a.qk_nope_head_dim + a.v_head_dim);
    return q + kv + heads * a.v_head_dim * h;
  }
  const std::int64_t q_width = m.num_attention_heads * m.head_dim;
  const std::int64_t kv_width = m.num_key_value_heads * m.head_dim;
  std::int64_t n = h * (q_width + 2 * kv_width) / tp + q_width * h / tp;
  if (m.qkv_bias) n += (q_width + 2 * kv_width) / tp;
  if (m.attention_output_bias) n += h;
  if (m.qk_norm) n += 2 * m.head_dim;
  if (m.attention_sinks) n += m.num_attention_heads / tp;
  return n;
}

std::int64_t mlp_parameters(const ModelSpec& m, std::int64_t f, int tp) {
  const std::int64_t up = m.mlp == MlpKind::swiglu ? 2 : 1;
  std::int64_t n = (up + 1) * m.hidden_size * f / tp;
  if (m.mlp_bias) n += up * f / tp + m.hidden_size;
  return n;
}

RankParameters decoder_parameters(const ModelSpec& m, const BlockShape& s) {
  const std::int64_t h = m.hidden_size;
  RankParameters n;
  n.dense = attention_parameters(m, s.tp) + 2 * norm_parameters(m, h);
  if (!s.layer.moe) {
    n.dense += mlp_parameters(m, m.intermediate_size, s.tp);
    return n;
  }
  const MoeSpec& moe = *m.moe;
  n.dense += h * moe.num_experts + (moe.router_bias ? moe.num_experts : 0);
  if (moe.shared_expert_intermediate_size > 0) {
    n.dense += 3 * h * moe.shared_expert_intermediate_size / s.tp;
    if (moe.shared_expert_gate) n.dense += h;
  }
  const std::int64_t one = 3 * h * moe.moe_intermediate_size / s.etp +
                           (moe.expert_bias ? 2 * moe.moe_intermediate_size / s.etp + h : 0);
  n.expert = moe.num_experts / s.ep * one;
  return n;
}

std::int64_t merger_parameters(const VisionSpec& v) {
  const std::int64_t wide = v.hidden_size * v.spatial_merge_size * v.spatial_merge_size;
  const std::int64_t products = wide * wide + wide + wide * v.out_hidden_size + v.out_hidden_size;
  // The main merger normalises before merging, the deepstack mergers after it.
  const auto taps = static_cast<std::int64_t>(v.deepstack_layers.size());
  return (1 + taps) * products + 2 * v.hidden_size + taps * 2 * wide;
}

}  // namespace

// Megatron pads the vocabulary to a multiple of 128 * tp (vocab_utils.py).
std::int64_t vocabulary_share(const ModelSpec& m, const BlockShape& s) {
  const std::int64_t unit = std::int64_t{128} * s.tp;
  return (m.vocab_size + unit - 1) / unit * unit / s.tp;
}

// The vision tower as a model of its own: an encoder with the same parts (Qwen3-VL).
ModelSpec tower_spec(const ModelSpec& m) {
  const VisionSpec& v = *m.vision;
  ModelSpec t;
  t.hidden_size = v.hidden_size;
  t.intermediate_size = v.intermediate_size;
  t.num_attention_heads = t.num_key_value_heads = v.num_heads;
  t.head_dim = v.hidden_size / v.num_heads;
  t.mlp = MlpKind::gelu;
  t.norm = Norm::layer_norm;
  t.qkv_bias = t.attention_output_bias = t.mlp_bias = true;
  t.causal = false;
  return t;
}

RankParameters rank_parameters(const ModelSpec& m, const BlockShape& s) {
  const std::int64_t h = m.hidden_size;
  switch (s.kind) {
    case BlockKind::embedding: {
      RankParameters n{vocabulary_share(m, s) * h, 0};
      if (m.position == PositionEmbedding::learned) n.dense += m.max_position_embeddings * h;
      return n;
    }
    case BlockKind::decoder:
      return decoder_parameters(m, s);
    case BlockKind::head: {
      const bool own = !m.tie_word_embeddings || s.tied_head;
      return {norm_parameters(m, h) + (own ? vocabulary_share(m, s) * h : 0), 0};
    }
    case BlockKind::mtp: {
      RankParameters n = decoder_parameters(m, s);
      n.dense += 2 * h * h + 3 * norm_parameters(m, h);
      return n;
    }
    case BlockKind::patchify: {
      const VisionSpec& v = *m.vision;
      return {v.in_channels * v.temporal_patch_size * v.patch_size * v.patch_size * v.hidden_size +
                  v.hidden_size + v.num_position_embeddings * v.hidden_size,
              0};
    }
    case BlockKind::vision: {
      const ModelSpec tower = tower_spec(m);
      return {attention_parameters(tower, s.tp) + 2 * norm_parameters(tower, tower.hidden_size) +
                  mlp_parameters(tower, tower.intermediate_size, s.tp),
              0};
    }
    case BlockKind::merger:
      return {merger_parameters(*m.vision), 0};
    case BlockKind::stage_entry:
    case BlockKind::stage_exit:
    case BlockKind::step_edge:
      return {};
  }
  return {};
}

}  // namespace qplan
