#include "models/parameters.h"

#include <algorithm>
#include <array>
#include <utility>

#include "models/error.h"

namespace qplan {
namespace {

using enum ParameterRole;

// A block's table as it grows.
class ParameterTable {
 public:
  explicit ParameterTable(const ModelSpec& model) : m_(model) {}

  void weight(ParameterRole role, std::int64_t out, std::int64_t in, Split split,
              std::int64_t copies = 1) {
    entries_.push_back({.role = role, .rows = out, .cols = in, .split = split, .copies = copies});
  }
  // Of what is stacked in the entry before: its rows, each split on its own.
  using Parts = std::array<std::int64_t, 5>;
  void stacked(const Parts& parts) { entries_.back().parts = parts; }
  // The bias of a linear layer or norm: one number an output, split as outputs are.
  void bias(ParameterRole role, std::int64_t out, Split split, std::int64_t copies = 1) {
    const Split mine = split == Split::rows ? Split::rows : Split::none;
    entries_.push_back(
        {.role = role, .bias = true, .rows = out, .cols = 1, .split = mine, .copies = copies});
  }
  void norm(ParameterRole role, std::int64_t width, std::int64_t copies = 1) {
    weight(role, width, 1, Split::none, copies);
    if (m_.norm == Norm::layer_norm) bias(role, width, Split::none, copies);
  }

  void mixer(Mixer kind) {
    switch (kind) {
      case Mixer::attention:
        return m_.mla ? latent_attention(*m_.mla) : grouped_attention();
      case Mixer::delta_net:
        return gated_delta_net(*m_.delta_net);
      case Mixer::mamba:
        return mamba(*m_.mamba);
      case Mixer::none:
        return;
    }
  }

  void mlp(ParameterRole gate, ParameterRole up, ParameterRole down, std::int64_t width,
           bool with_bias, std::int64_t copies = 1) {
    mlp(gate, up, down, m_.hidden_size, width, with_bias, copies);
  }
  // ... of rows `h` wide.
  void mlp(ParameterRole gate, ParameterRole up, ParameterRole down, std::int64_t h,
           std::int64_t width, bool with_bias, std::int64_t copies) {
    const bool gated = m_.mlp == MlpKind::swiglu;
    if (gated) weight(gate, width, h, Split::rows, copies);
    weight(up, width, h, Split::rows, copies);
    if (with_bias && gated) bias(gate, width, Split::rows, copies);
    if (with_bias) bias(up, width, Split::rows, copies);
    weight(down, h, width, Split::cols, copies);
    if (with_bias) bias(down, h, Split::cols, copies);
  }

  void experts(const MoeSpec& moe) {
    weight(router, moe.num_experts, m_.hidden_size, Split::none);
    if (moe.router_bias && (moe.sigmoid_scores || moe.corrects_softmax)) {
      weight(score_correction, moe.num_experts, 1, Split::none);
    } else if (moe.router_bias) {
      bias(router, moe.num_experts, Split::none);
    }
    if (moe.shared_expert_intermediate_size > 0) {
      mlp(shared_gate_proj, shared_up_proj, shared_down_proj, moe.shared_expert_intermediate_size,
          false);
    }
    if (moe.shared_expert_gate) weight(shared_expert_gate, 1, m_.hidden_size, Split::none);
    const std::int64_t h = m_.hidden_size;
    if (moe.latent_size > 0) weight(latent_down_proj, moe.latent_size, h, Split::none);
    mlp(expert_gate_proj, expert_up_proj, expert_down_proj, moe.expert_width(h),
        moe.moe_intermediate_size, moe.expert_bias, moe.num_experts);
    if (moe.latent_size > 0) weight(latent_up_proj, h, moe.latent_size, Split::none);
  }

  void decoder(const LayerKind& kind) {
    const bool before = m_.norm_place != NormPlace::behind;
    const bool behind = m_.norm_place != NormPlace::before;
    if (before && kind.mixer != Mixer::none) norm(input_norm, m_.hidden_size);
    mixer(kind.mixer);
    if (behind && kind.mixer != Mixer::none) norm(attention_out_norm, m_.hidden_size);
    if (!kind.mlp) return;
    if (before && !m_.parallel_mlp) norm(post_attention_norm, m_.hidden_size);
    if (kind.moe) {
      experts(*m_.moe);
    } else {
      mlp(gate_proj, up_proj, down_proj, m_.intermediate_size, m_.mlp_bias);
    }
    if (behind) norm(mlp_out_norm, m_.hidden_size);  // of a dense MLP: no model has it of experts
  }

  // Two norms, the projection of [embedding; hidden], a decoder layer, the norm before the head;
  // embedding and head are the main model's (DeepSeek-V3, arXiv 2412.19437, section 2.2).
  void multi_token_prediction() {
    const std::int64_t h = m_.hidden_size;
    norm(mtp_embed_norm, h);
    norm(mtp_hidden_norm, h);
    weight(mtp_proj, h, 2 * h, Split::none);
    decoder({.moe = m_.moe.has_value(), .window = 0});
    norm(mtp_final_norm, h);
  }

  std::vector<Parameter> take() { return std::move(entries_); }

 private:
  void grouped_attention() {
    const std::int64_t h = m_.hidden_size, d = m_.head_dim;
    const std::int64_t query = m_.num_attention_heads * d, key = m_.num_key_value_heads * d;
    const std::int64_t projected = m_.attention_output_gate ? 2 * query : query;
    weight(q_proj, projected, h, Split::rows);
    weight(k_proj, key, h, Split::rows);
    weight(v_proj, key, h, Split::rows);
    if (m_.qkv_bias) {
      bias(q_proj, projected, Split::rows);
      bias(k_proj, key, Split::rows);
      bias(v_proj, key, Split::rows);
    }
    if (m_.qk_norm) {
      const bool whole = m_.qk_norm_whole || m_.qk_norm_each;
      weight(q_norm, whole ? query : d, 1, whole ? Split::rows : Split::none);
      weight(k_norm, whole ? key : d, 1, whole ? Split::rows : Split::none);
    }
    if (m_.attention_sinks) weight(sinks, m_.num_attention_heads, 1, Split::rows);
    weight(o_proj, h, query, Split::cols);
    if (m_.attention_output_bias) bias(o_proj, h, Split::cols);
  }

  // transformers 5.23, modeling_qwen3_next.py and modeling_qwen3_5.py.
  void gated_delta_net(const DeltaNetSpec& d) {
    const std::int64_t h = m_.hidden_size, heads = d.num_value_heads;
    const Parts channels{d.key_dim(), d.key_dim(), d.value_dim()};
    if (d.packed_projections) {
      weight(linear_qkvz_proj, d.conv_dim() + d.value_dim(), h, Split::rows);
      weight(linear_ba_proj, 2 * heads, h, Split::rows);
    } else {
      weight(linear_qkv_proj, d.conv_dim(), h, Split::rows);
      stacked(channels);
      weight(linear_z_proj, d.value_dim(), h, Split::rows);
      weight(linear_b_proj, heads, h, Split::rows);
      weight(linear_a_proj, heads, h, Split::rows);
    }
    weight(linear_conv, d.conv_dim(), d.conv_kernel, Split::rows);
    stacked(channels);
    weight(linear_dt_bias, heads, 1, Split::rows);
    weight(linear_a_log, heads, 1, Split::rows);
    weight(linear_norm, d.value_head_dim, 1, Split::none);
    weight(linear_out_proj, h, d.value_dim(), Split::cols);
  }

  // transformers 5.23, modeling_nemotron_h.py. The norm is of a group's columns.
  void mamba(const MambaSpec& s) {
    const std::int64_t h = m_.hidden_size;
    const std::int64_t shared = s.num_groups * s.state_size;  // of B, or C
    weight(mamba_in_proj, s.projected(), h, Split::rows);
    stacked({s.inner(), s.inner(), shared, shared, s.num_heads});
    weight(linear_conv, s.conv_dim(), s.conv_kernel, Split::rows);
    stacked({s.inner(), shared, shared});
    if (s.conv_bias) {
      bias(linear_conv, s.conv_dim(), Split::rows);
      stacked({s.inner(), shared, shared});
    }
    weight(linear_dt_bias, s.num_heads, 1, Split::rows);
    weight(linear_a_log, s.num_heads, 1, Split::rows);
    weight(mamba_skip, s.num_heads, 1, Split::rows);
    weight(linear_norm, s.inner(), 1, Split::rows);
    weight(linear_out_proj, h, s.inner(), Split::cols);
  }

  void latent_attention(const MlaSpec& a) {
    const std::int64_t h = m_.hidden_size, heads = m_.num_attention_heads;
    const std::int64_t query = heads * (a.qk_nope_head_dim + a.qk_rope_head_dim);
    if (a.q_lora_rank == 0) {
      weight(q_proj, query, h, Split::rows);
    } else {
      weight(q_a_proj, a.q_lora_rank, h, Split::none);
      if (m_.qkv_bias) bias(q_a_proj, a.q_lora_rank, Split::none);
      weight(q_a_norm, a.q_lora_rank, 1, Split::none);
      weight(q_b_proj, query, a.q_lora_rank, Split::rows);
    }
    const std::int64_t compressed = a.kv_lora_rank + a.qk_rope_head_dim;
    weight(kv_a_proj, compressed, h, Split::none);
    if (m_.qkv_bias) bias(kv_a_proj, compressed, Split::none);
    weight(kv_a_norm, a.kv_lora_rank, 1, Split::none);
    weight(kv_b_proj, heads * (a.qk_nope_head_dim + a.v_head_dim), a.kv_lora_rank, Split::rows);
    weight(o_proj, h, heads * a.v_head_dim, Split::cols);
    if (m_.attention_output_bias) bias(o_proj, h, Split::cols);
    if (m_.indexer) lightning_indexer(*m_.indexer, a.q_lora_rank);
  }

  // transformers 5.23, modeling_deepseek_v32.py. Every rank of tp has all of it (Megatron-LM
  // 00bebb45, megatron/core/transformer/experimental_attention_variant/dsa.py: "duplicated").
  void lightning_indexer(const IndexerSpec& i, std::int64_t query_rank) {
    weight(index_q_proj, i.num_heads * i.head_dim, query_rank, Split::none);
    weight(index_k_proj, i.head_dim, m_.hidden_size, Split::none);
    weight(index_k_norm, i.head_dim, 1, Split::none);
    bias(index_k_norm, i.head_dim, Split::none);
    weight(index_weights_proj, i.num_heads, m_.hidden_size, Split::none);
  }

  const ModelSpec& m_;
  std::vector<Parameter> entries_;
};

// The main merger normalises patches before it merges them, the taps' mergers after.
void mergers(ParameterTable& table, const VisionSpec& v) {
  const std::int64_t wide = v.hidden_size * v.spatial_merge_size * v.spatial_merge_size;
  const auto add = [&](ParameterRole norm, std::int64_t width, ParameterRole fc1, ParameterRole fc2,
                       std::int64_t copies) {
    table.norm(norm, width, copies);
    table.weight(fc1, wide, wide, Split::none, copies);
    table.bias(fc1, wide, Split::none, copies);
    table.weight(fc2, v.out_hidden_size, wide, Split::none, copies);
    table.bias(fc2, v.out_hidden_size, Split::none, copies);
  };
  add(merger_norm, v.hidden_size, merger_fc1, merger_fc2, 1);
  const auto taps = static_cast<std::int64_t>(v.deepstack_layers.size());
  if (taps > 0) add(deepstack_norm, wide, deepstack_fc1, deepstack_fc2, taps);
}

std::vector<Parameter> vision_parameters(const VisionSpec& v, ModelPart part) {
  const ModelSpec layers = tower_spec(v);
  ParameterTable table(layers);
  if (part == ModelPart::vision) {
    table.decoder({});
  } else if (part == ModelPart::patchify) {
    const std::int64_t pixels = v.in_channels * v.temporal_patch_size * v.patch_size * v.patch_size;
    table.weight(patch_embed, v.hidden_size, pixels, Split::none);
    if (v.gated) return table.take();
    table.bias(patch_embed, v.hidden_size, Split::none);
    table.weight(embed_positions, v.num_position_embeddings, v.hidden_size, Split::none);
  } else {
    mergers(table, v);
  }
  return table.take();
}

}  // namespace

bool is_expert(ParameterRole role) {
  return role == expert_gate_proj || role == expert_up_proj || role == expert_down_proj;
}

bool has_adapters(ModelPart part) {
  return part == ModelPart::decoder || part == ModelPart::mtp;
}

bool is_trained(ParameterRole role) {
  return role != score_correction;
}

bool is_norm(ParameterRole role) {
  constexpr std::array norms{input_norm,      post_attention_norm, final_norm,     q_norm,
                             k_norm,          attention_out_norm,  mlp_out_norm,   index_k_norm,
                             q_a_norm,        kv_a_norm,           mtp_embed_norm, mtp_final_norm,
                             mtp_hidden_norm, merger_norm,         deepstack_norm, linear_norm};
  return std::find(norms.begin(), norms.end(), role) != norms.end();
}

bool is_projection(const Parameter& p) {
  constexpr std::array projections{q_proj,
                                   k_proj,
                                   v_proj,
                                   o_proj,
                                   q_a_proj,
                                   q_b_proj,
                                   kv_a_proj,
                                   kv_b_proj,
                                   gate_proj,
                                   up_proj,
                                   down_proj,
                                   mtp_proj,
                                   shared_gate_proj,
                                   shared_up_proj,
                                   shared_down_proj,
                                   expert_gate_proj,
                                   expert_up_proj,
                                   expert_down_proj,
                                   linear_qkvz_proj,
                                   linear_ba_proj,
                                   linear_qkv_proj,
                                   linear_z_proj,
                                   linear_b_proj,
                                   linear_a_proj,
                                   linear_out_proj,
                                   mamba_in_proj,
                                   latent_down_proj,
                                   latent_up_proj,
                                   index_q_proj,
                                   index_k_proj,
                                   index_weights_proj};
  return !p.bias && p.adapter == Adapter::none &&
         std::find(projections.begin(), projections.end(), p.role) != projections.end();
}

bool is_vector(const Parameter& p) {
  return p.bias || p.adapter == Adapter::magnitude || is_norm(p.role) || p.role == sinks ||
         p.role == score_correction || p.role == linear_dt_bias || p.role == linear_a_log ||
         p.role == mamba_skip;
}

bool is_hidden_matrix(const Parameter& p) {
  const bool at_an_end = p.role == embed_tokens || p.role == embed_positions || p.role == lm_head ||
                         p.role == patch_embed;
  return !is_vector(p) && !at_an_end && p.role != linear_conv;
}

std::vector<Parameter> parameters_of(const ModelSpec& model, ModelPart part,
                                     const LayerKind& kind) {
  ParameterTable table(model);
  switch (part) {
    case ModelPart::embedding:
      table.weight(embed_tokens, model.vocab_size, model.hidden_size, Split::vocabulary);
      if (model.position == PositionEmbedding::learned) {
        table.weight(embed_positions, model.max_position_embeddings, model.hidden_size,
                     Split::none);
      }
      return table.take();
    case ModelPart::decoder:
      table.decoder(kind);
      return table.take();
    case ModelPart::head:
      table.norm(final_norm, model.hidden_size);
      if (!model.tie_word_embeddings) {
        table.weight(lm_head, model.vocab_size, model.hidden_size, Split::vocabulary);
      }
      return table.take();
    case ModelPart::mtp:
      table.multi_token_prediction();
      return table.take();
    case ModelPart::patchify:
    case ModelPart::vision:
    case ModelPart::merger:
      QPLAN_CHECK(model.vision.has_value(), "a vision part belongs to a model with a vision tower");
      return vision_parameters(*model.vision, part);
  }
  return {};
}

std::vector<ModelParameter> model_parameters(const ModelSpec& model, const Lora& lora) {
  std::vector<ModelParameter> all;
  std::vector<ModelParameter> adapters;
  const auto add = [&](ModelPart part, std::int64_t layer, const LayerKind& kind = {}) {
    const std::vector<Parameter> table = parameters_of(model, part, kind);
    for (const Parameter& parameter : table) {
      for (std::int64_t copy = 0; copy < parameter.copies; ++copy) {
        all.push_back({parameter, part, layer, copy, static_cast<std::int64_t>(all.size())});
      }
    }
    if (!has_adapters(part)) return;
    for (const Parameter& parameter : adapters_of(table, lora)) {
      for (std::int64_t copy = 0; copy < parameter.copies; ++copy) {
        adapters.push_back({parameter, part, layer, copy, 0});
      }
    }
  };
  add(ModelPart::embedding, 0);
  for (std::int64_t i = 0; i < model.num_layers; ++i) {
    add(ModelPart::decoder, i, model.layers[static_cast<std::size_t>(i)]);
  }
  add(ModelPart::head, 0);
  for (std::int64_t i = 0; i < model.num_mtp_layers; ++i) add(ModelPart::mtp, i);
  if (model.vision) {
    add(ModelPart::patchify, 0);
    for (std::int64_t i = 0; i < model.vision->depth; ++i) add(ModelPart::vision, i);
    add(ModelPart::merger, 0);
  }
  for (ModelParameter& adapter : adapters) {
    adapter.index = static_cast<std::int64_t>(all.size());
    all.push_back(adapter);
  }
  return all;
}

}  // namespace qplan
