#include "models/model_spec.h"

namespace qplan {
namespace {

std::int64_t norm_parameters(const ModelSpec& m, std::int64_t width) {
  return m.norm == Norm::layer_norm ? 2 * width : width;  // a LayerNorm has a bias too
}

std::int64_t mla_parameters(const ModelSpec& m, const MlaSpec& a) {
  const std::int64_t h = m.hidden_size, heads = m.num_attention_heads;
  const std::int64_t query = heads * (a.qk_nope_head_dim + a.qk_rope_head_dim);
  const std::int64_t q =
      a.q_lora_rank == 0 ? h * query : (h + 1 + query) * a.q_lora_rank;  // 1: norm
  const std::int64_t compressed = a.kv_lora_rank + a.qk_rope_head_dim;
  const std::int64_t expand = a.kv_lora_rank * heads * (a.qk_nope_head_dim + a.v_head_dim);
  const std::int64_t kv = h * compressed + a.kv_lora_rank + expand;
  const std::int64_t bias =
      (m.qkv_bias ? a.q_lora_rank + compressed : 0) + (m.attention_output_bias ? h : 0);
  return q + kv + heads * a.v_head_dim * h + bias;
}

std::int64_t attention_parameters(const ModelSpec& m) {
  if (m.mla) return mla_parameters(m, *m.mla);
  const std::int64_t h = m.hidden_size, d = m.head_dim;
  const std::int64_t query = m.num_attention_heads * d;
  const std::int64_t qkv = query + 2 * m.num_key_value_heads * d;
  return h * qkv + (m.qkv_bias ? qkv : 0) + query * h + (m.attention_output_bias ? h : 0) +
         (m.qk_norm ? 2 * d : 0) + (m.attention_sinks ? m.num_attention_heads : 0);
}

std::int64_t mlp_parameters(const ModelSpec& m, std::int64_t intermediate, bool bias) {
  const std::int64_t into = m.mlp == MlpKind::swiglu ? 2 * intermediate : intermediate;
  return m.hidden_size * (into + intermediate) + (bias ? into + m.hidden_size : 0);
}

std::int64_t expert_parameters(const ModelSpec& m) {
  return mlp_parameters(m, m.moe->moe_intermediate_size, m.moe->expert_bias);
}

std::int64_t moe_parameters(const ModelSpec& m) {
  const MoeSpec& moe = *m.moe;
  const std::int64_t router =
      m.hidden_size * moe.num_experts + (moe.router_bias ? moe.num_experts : 0);
  const std::int64_t shared = mlp_parameters(m, moe.shared_expert_intermediate_size, false) +
                              (moe.shared_expert_gate ? m.hidden_size : 0);
  return router + shared + moe.num_experts * expert_parameters(m);
}

// Two norms, the projection of [hidden; next embedding] to hidden, a decoder layer, the head's
// norm; embedding and head are the main model's (DeepSeek-V3, arXiv 2412.19437, section 2.2).
std::int64_t mtp_layer_parameters(const ModelSpec& m) {
  const std::int64_t h = m.hidden_size;
  return 3 * norm_parameters(m, h) + 2 * h * h +
         layer_parameters(m, {.moe = m.moe.has_value(), .window = 0});
}

// Linear layers with bias and LayerNorms throughout (transformers, Qwen3VLMoeVisionModel).
std::int64_t vision_parameters(const VisionSpec& v) {
  const auto linear = [](std::int64_t in, std::int64_t out) { return in * out + out; };
  const std::int64_t d = v.hidden_size;
  const std::int64_t patch = v.in_channels * v.temporal_patch_size * v.patch_size * v.patch_size;
  const std::int64_t block = 2 * (2 * d) + linear(d, 3 * d) + linear(d, d) +
                             linear(d, v.intermediate_size) + linear(v.intermediate_size, d);
  const std::int64_t merged = d * v.spatial_merge_size * v.spatial_merge_size;
  const std::int64_t merger = linear(merged, merged) + linear(merged, v.out_hidden_size);
  // The last merger normalises patches before it merges them, the taps' mergers after.
  const auto taps = static_cast<std::int64_t>(v.deepstack_layers.size());
  return linear(patch, d) + v.num_position_embeddings * d + v.depth * block + (merger + 2 * d) +
         taps * (merger + 2 * merged);
}

}  // namespace

std::int64_t layer_parameters(const ModelSpec& model, const LayerKind& kind) {
  const std::int64_t mlp = kind.moe
                               ? moe_parameters(model)
                               : mlp_parameters(model, model.intermediate_size, model.mlp_bias);
  return 2 * norm_parameters(model, model.hidden_size) + attention_parameters(model) + mlp;
}

ParameterCount count_parameters(const ModelSpec& model) {
  ParameterCount count;
  count.embedding = model.vocab_size * model.hidden_size;
  count.head = model.tie_word_embeddings ? 0 : count.embedding;
  if (model.position == PositionEmbedding::learned) {
    count.embedding += model.max_position_embeddings * model.hidden_size;
  }
  count.layers = norm_parameters(model, model.hidden_size);
  for (const LayerKind& kind : model.layers) {
    count.layers += layer_parameters(model, kind);
    if (kind.moe) {
      count.inactive_experts +=
          (model.moe->num_experts - model.moe->top_k) * expert_parameters(model);
    }
  }
  if (model.num_mtp_layers > 0) count.mtp = model.num_mtp_layers * mtp_layer_parameters(model);
  if (model.vision) count.vision = vision_parameters(*model.vision);
  return count;
}

}  // namespace qplan
