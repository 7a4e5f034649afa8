// tensor_place(): the tensors of each architecture's checkpoint.

#include <fmt/format.h>

#include <span>

#include "models/error.h"
#include "models/parameters.h"

namespace qplan {
namespace {

using enum ParameterRole;

struct Module {
  ParameterRole role;
  std::string_view path;  // below the layer, or below the model
};

// Llama's names, which most architectures keep.
constexpr Module kDecoder[] = {{embed_tokens, "embed_tokens"},
                               {input_norm, "input_layernorm"},
                               {q_proj, "self_attn.q_proj"},
                               {k_proj, "self_attn.k_proj"},
                               {v_proj, "self_attn.v_proj"},
                               {q_norm, "self_attn.q_norm"},
                               {k_norm, "self_attn.k_norm"},
                               {o_proj, "self_attn.o_proj"},
                               {q_a_proj, "self_attn.q_a_proj"},
                               {q_a_norm, "self_attn.q_a_layernorm"},
                               {q_b_proj, "self_attn.q_b_proj"},
                               {kv_a_proj, "self_attn.kv_a_proj_with_mqa"},
                               {kv_a_norm, "self_attn.kv_a_layernorm"},
                               {kv_b_proj, "self_attn.kv_b_proj"},
                               {index_q_proj, "self_attn.indexer.wq_b"},
                               {index_k_proj, "self_attn.indexer.wk"},
                               {index_k_norm, "self_attn.indexer.k_norm"},
                               {index_weights_proj, "self_attn.indexer.weights_proj"},
                               {attention_out_norm, "post_attention_layernorm"},
                               {mlp_out_norm, "post_feedforward_layernorm"},
                               {linear_qkvz_proj, "linear_attn.in_proj_qkvz"},
                               {linear_ba_proj, "linear_attn.in_proj_ba"},
                               {linear_qkv_proj, "linear_attn.in_proj_qkv"},
                               {linear_z_proj, "linear_attn.in_proj_z"},
                               {linear_b_proj, "linear_attn.in_proj_b"},
                               {linear_a_proj, "linear_attn.in_proj_a"},
                               {linear_conv, "linear_attn.conv1d"},
                               {linear_norm, "linear_attn.norm"},
                               {linear_out_proj, "linear_attn.out_proj"},
                               {post_attention_norm, "post_attention_layernorm"},
                               {gate_proj, "mlp.gate_proj"},
                               {up_proj, "mlp.up_proj"},
                               {down_proj, "mlp.down_proj"},
                               {router, "mlp.gate"},
                               {shared_gate_proj, "mlp.shared_experts.gate_proj"},
                               {shared_up_proj, "mlp.shared_experts.up_proj"},
                               {shared_down_proj, "mlp.shared_experts.down_proj"},
                               {shared_expert_gate, "mlp.shared_expert_gate"},
                               {expert_gate_proj, "gate_proj"},
                               {expert_up_proj, "up_proj"},
                               {expert_down_proj, "down_proj"},
                               {final_norm, "norm"},
                               {mtp_embed_norm, "enorm"},
                               {mtp_hidden_norm, "hnorm"},
                               {mtp_proj, "eh_proj"},
                               {mtp_final_norm, "shared_head.norm"}};

// Around the layer that predicts another token, of Qwen's models with Gated DeltaNet.
constexpr Module kPredictingQwen[] = {{mtp_embed_norm, "pre_fc_norm_embedding"},
                                      {mtp_hidden_norm, "pre_fc_norm_hidden"},
                                      {mtp_proj, "fc"},
                                      {mtp_final_norm, "norm"}};

constexpr Module kQwen2Moe[] = {{shared_gate_proj, "mlp.shared_expert.gate_proj"},
                                {shared_up_proj, "mlp.shared_expert.up_proj"},
                                {shared_down_proj, "mlp.shared_expert.down_proj"}};

constexpr Module kMixtral[] = {{router, "block_sparse_moe.gate"},
                               {expert_gate_proj, "w1"},
                               {expert_up_proj, "w3"},
                               {expert_down_proj, "w2"}};

constexpr Module kLlama4[] = {{gate_proj, "feed_forward.gate_proj"},
                              {up_proj, "feed_forward.up_proj"},
                              {down_proj, "feed_forward.down_proj"},
                              {router, "feed_forward.router"},
                              {shared_gate_proj, "feed_forward.shared_expert.gate_proj"},
                              {shared_up_proj, "feed_forward.shared_expert.up_proj"},
                              {shared_down_proj, "feed_forward.shared_expert.down_proj"}};

constexpr Module kGptOss[] = {{router, "mlp.router"}};

// Its norm before the MLP has a name of its own, that behind attention Llama's.
constexpr Module kGemma3[] = {{post_attention_norm, "pre_feedforward_layernorm"}};

constexpr Module kGlm4[] = {{attention_out_norm, "post_self_attn_layernorm"},
                            {mlp_out_norm, "post_mlp_layernorm"}};

constexpr Module kHunyuan[] = {{q_norm, "self_attn.query_layernorm"},
                               {k_norm, "self_attn.key_layernorm"},
                               {router, "mlp.gate.wg"},
                               {shared_gate_proj, "mlp.shared_mlp.gate_proj"},
                               {shared_up_proj, "mlp.shared_mlp.up_proj"},
                               {shared_down_proj, "mlp.shared_mlp.down_proj"}};

constexpr Module kGpt2[] = {
    {embed_tokens, "wte"},     {embed_positions, "wpe"},      {input_norm, "ln_1"},
    {q_proj, "attn.c_attn"},   {k_proj, "attn.c_attn"},       {v_proj, "attn.c_attn"},
    {o_proj, "attn.c_proj"},   {post_attention_norm, "ln_2"}, {up_proj, "mlp.c_fc"},
    {down_proj, "mlp.c_proj"}, {final_norm, "ln_f"}};

// Below the layer's one mixer; prediction's own layers as DeepSeek-V3 has them.
constexpr Module kNemotronH[] = {{q_proj, "q_proj"},
                                 {k_proj, "k_proj"},
                                 {v_proj, "v_proj"},
                                 {o_proj, "o_proj"},
                                 {mamba_in_proj, "in_proj"},
                                 {linear_conv, "conv1d"},
                                 {linear_norm, "norm"},
                                 {linear_out_proj, "out_proj"},
                                 {up_proj, "up_proj"},
                                 {down_proj, "down_proj"},
                                 {router, "gate"},
                                 {shared_up_proj, "shared_experts.up_proj"},
                                 {shared_down_proj, "shared_experts.down_proj"},
                                 {latent_down_proj, "fc1_latent_proj"},
                                 {latent_up_proj, "fc2_latent_proj"}};

constexpr Module kVision[] = {{patch_embed, "patch_embed.proj"},
                              {embed_positions, "pos_embed"},
                              {input_norm, "norm1"},
                              {q_proj, "attn.qkv"},
                              {k_proj, "attn.qkv"},
                              {v_proj, "attn.qkv"},
                              {o_proj, "attn.proj"},
                              {post_attention_norm, "norm2"},
                              {up_proj, "mlp.linear_fc1"},
                              {down_proj, "mlp.linear_fc2"},
                              {merger_norm, "norm"},
                              {merger_fc1, "linear_fc1"},
                              {merger_fc2, "linear_fc2"},
                              {deepstack_norm, "norm"},
                              {deepstack_fc1, "linear_fc1"},
                              {deepstack_fc2, "linear_fc2"}};

// Qwen2.5-VL's where they are others.
constexpr Module kGatedVision[] = {{gate_proj, "mlp.gate_proj"}, {up_proj, "mlp.up_proj"},
                                   {down_proj, "mlp.down_proj"}, {merger_norm, "ln_q"},
                                   {merger_fc1, "mlp.0"},        {merger_fc2, "mlp.2"}};

std::string_view find(std::span<const Module> modules, ParameterRole role) {
  for (const Module& module : modules) {
    if (module.role == role) return module.path;
  }
  return "";
}

bool is_llama4(const ModelSpec& m) {
  return m.architecture == "llama4" || m.architecture == "llama4_text";
}

// The architecture's own word, else Llama's.
std::string_view module_of(const ModelSpec& m, ParameterRole role) {
  std::span<const Module> own;
  const bool one_shared = m.architecture == "qwen2_moe" || m.delta_net.has_value();
  if (one_shared) own = kQwen2Moe;
  if (m.architecture == "mixtral") own = kMixtral;
  if (m.architecture == "gpt_oss") own = kGptOss;
  if (is_llama4(m)) own = kLlama4;
  if (m.architecture.starts_with("gemma3")) own = kGemma3;
  if (m.architecture == "glm4") own = kGlm4;
  if (m.architecture.starts_with("hunyuan_v1")) own = kHunyuan;
  const std::string_view word = find(own, role);
  return word.empty() ? find(kDecoder, role) : word;
}

// Which third of a fused q|k|v.
std::int64_t third(ParameterRole role) {
  return role == k_proj ? 1 : role == v_proj ? 2 : 0;
}

bool is_qkv(ParameterRole role) {
  return role == q_proj || role == k_proj || role == v_proj;
}

// A parameter that is a tensor of its own.
TensorPlace whole(const Parameter& p, std::string name) {
  if (is_vector(p)) return {std::move(name), {p.rows}, 0, 1, 1};
  return {std::move(name), {p.rows, p.cols}, 0, p.cols, 1};
}

// "path.weight" or "path.bias".
std::string named(const std::string& prefix, std::string_view path, const Parameter& p) {
  return fmt::format("{}{}.{}", prefix, path, p.bias ? "bias" : "weight");
}

// GPT-2's Conv1D keeps (in, out), and q, k, v in one.
TensorPlace gpt2_place(const ModelParameter& it) {
  const Parameter& p = it.parameter;
  if (p.role == lm_head) return whole(p, "lm_head.weight");
  std::string prefix = "transformer.";
  if (it.part == ModelPart::decoder) prefix += fmt::format("h.{}.", it.layer);
  std::string name = named(prefix, find(kGpt2, p.role), p);
  if (it.part != ModelPart::decoder || is_norm(p.role)) return whole(p, std::move(name));
  const std::int64_t out = is_qkv(p.role) ? 3 * p.rows : p.rows;
  const std::int64_t first = third(p.role) * p.rows;
  if (p.bias) return {std::move(name), {out}, first, 1, 1};
  return {std::move(name), {p.cols, out}, first, 1, out};
}

// Phi-3's q|k|v and gate|up, and GLM-4's gate|up: rows of one tensor, one behind the other.
TensorPlace stacked_rows(const ModelSpec& m, const Parameter& p, const std::string& layer) {
  const std::int64_t query = m.num_attention_heads * m.head_dim;
  const std::int64_t key = m.num_key_value_heads * m.head_dim;
  const bool attends = is_qkv(p.role);
  const std::int64_t rows = attends ? query + 2 * key : 2 * m.intermediate_size;
  std::int64_t first = 0;
  if (p.role == k_proj) first = query;
  if (p.role == v_proj) first = query + key;
  if (p.role == up_proj) first = m.intermediate_size;
  const std::string name = layer + (attends ? "self_attn.qkv_proj" : "mlp.gate_up_proj");
  return {name + ".weight", {rows, p.cols}, first * p.cols, p.cols, 1};
}

bool stacks_rows(const ModelSpec& m, const Parameter& p) {
  const bool gates = p.role == gate_proj || p.role == up_proj;
  return (m.architecture == "phi3" && (gates || is_qkv(p.role))) ||
         (m.architecture == "glm4" && gates);
}

// Qwen's towers: q, k, v in one, layers called blocks, a convolution as the patch embedding.
TensorPlace vision_place(const VisionSpec& v, const ModelParameter& it) {
  const Parameter& p = it.parameter;
  std::string prefix = v.gated ? "visual." : "model.visual.";
  if (it.part == ModelPart::vision) prefix += fmt::format("blocks.{}.", it.layer);
  if (it.part == ModelPart::merger) {
    const bool main = p.role == merger_norm || p.role == merger_fc1 || p.role == merger_fc2;
    prefix += main ? "merger." : fmt::format("deepstack_merger_list.{}.", it.copy);
  }
  std::string_view module = v.gated ? find(kGatedVision, p.role) : "";
  if (module.empty()) module = find(kVision, p.role);
  TensorPlace place = whole(p, named(prefix, module, p));
  if (is_qkv(p.role)) {
    place.begin = third(p.role) * p.elements();
    place.shape.front() *= 3;
  }
  if (p.role == patch_embed && !p.bias) {
    place.shape = {p.rows, v.in_channels, v.temporal_patch_size, v.patch_size, v.patch_size};
  }
  return place;
}

// gpt-oss: all experts in one tensor, (in, out) each, gate and up alternating.
TensorPlace gpt_oss_expert(const Parameter& p, std::int64_t expert, const std::string& experts) {
  const bool down = p.role == expert_down_proj;
  const std::int64_t out = down ? p.rows : 2 * p.rows;
  const std::int64_t step = down ? 1 : 2, first = p.role == expert_up_proj ? 1 : 0;
  std::string name = experts + (down ? "down_proj" : "gate_up_proj") + (p.bias ? "_bias" : "");
  if (p.bias) return {std::move(name), {p.copies, out}, expert * out + first, step, 1};
  const std::int64_t begin = expert * p.cols * out + first;
  return {std::move(name), {p.copies, p.cols, out}, begin, step, out};
}

// Qwen3-VL-MoE and Llama 4: all experts in one tensor, (in, out) each, gate before up. That is how
// published checkpoints are; transformers turns Qwen's as it reads and writes
// (conversion_mapping.py).
TensorPlace stacked_expert(const Parameter& p, std::int64_t expert, const std::string& experts) {
  const bool down = p.role == expert_down_proj;
  const std::int64_t out = down ? p.rows : 2 * p.rows;
  const std::int64_t first = p.role == expert_up_proj ? p.rows : 0;
  std::string name = experts + (down ? "down_proj" : "gate_up_proj");
  return {std::move(name), {p.copies, p.cols, out}, expert * p.cols * out + first, 1, out};
}

// Nemotron-H: a norm and a mixer in each layer. Multi-token prediction stands after the last layer.
TensorPlace nemotron_h_place(const ModelSpec& m, const ModelParameter& it) {
  const Parameter& p = it.parameter;
  if (p.role == lm_head) return whole(p, "lm_head.weight");
  if (p.role == embed_tokens) return whole(p, "backbone.embeddings.weight");
  if (it.part == ModelPart::head) return whole(p, "backbone.norm_f.weight");
  const bool predicts = it.part == ModelPart::mtp;
  const std::int64_t number = predicts ? m.num_layers + it.layer : it.layer;
  const std::string layer = fmt::format("backbone.layers.{}.", number), mixer = layer + "mixer.";
  if (is_expert(p.role)) {
    return whole(p, fmt::format("{}experts.{}.{}.weight", mixer, it.copy, find(kDecoder, p.role)));
  }
  if (p.role == linear_dt_bias) return whole(p, mixer + "dt_bias");
  if (p.role == linear_a_log) return whole(p, mixer + "A_log");
  if (p.role == mamba_skip) return whole(p, mixer + "D");
  if (p.role == score_correction) return whole(p, mixer + "gate.e_score_correction_bias");
  const std::string_view module = find(kNemotronH, p.role);
  if (module.empty()) {
    const bool one = !predicts && (p.role == input_norm || p.role == post_attention_norm);
    return whole(p, named(layer, one ? "norm" : find(kDecoder, p.role), p));
  }
  TensorPlace place = whole(p, named(mixer, module, p));
  if (p.role == linear_conv && !p.bias) place.shape = {p.rows, 1, p.cols};
  return place;
}

TensorPlace expert_place(const ModelSpec& m, const ModelParameter& it, const std::string& layer) {
  const Parameter& p = it.parameter;
  const bool mixtral = m.architecture == "mixtral";
  const std::string experts = layer + (mixtral ? "block_sparse_moe.experts." : "mlp.experts.");
  if (m.architecture == "gpt_oss") return gpt_oss_expert(p, it.copy, experts);
  if (is_llama4(m)) return stacked_expert(p, it.copy, layer + "feed_forward.experts.");
  if (m.architecture.starts_with("qwen3_vl_moe")) return stacked_expert(p, it.copy, experts);
  return whole(p, named(fmt::format("{}{}.", experts, it.copy), module_of(m, p.role), p));
}

// The layer that predicts another token stands after the last one, in Qwen3.5's checkpoints apart
// (transformers leaves it out: modeling_qwen3_5.py, _keys_to_ignore_on_load_unexpected).
std::string layer_prefix(const ModelSpec& m, const ModelParameter& it, const std::string& model) {
  const bool predicts = it.part == ModelPart::mtp;
  if (predicts && m.delta_net) return fmt::format("mtp.layers.{}.", it.layer);
  return fmt::format("{}layers.{}.", model, predicts ? m.num_layers + it.layer : it.layer);
}

// The module of the weight that an adapter stands beside, in PEFT's model around the model's class.
TensorPlace adapter_place(const ModelSpec& m, const ModelParameter& it) {
  ModelParameter weight = it;
  weight.parameter.adapter = Adapter::none;
  std::string module = tensor_place(m, weight).name;
  if (module.ends_with(".weight")) module.resize(module.size() - std::size(".weight") + 1);
  const Parameter& p = it.parameter;
  const std::string_view part = p.adapter == Adapter::lora_a   ? "lora_A.weight"
                                : p.adapter == Adapter::lora_b ? "lora_B.weight"
                                                               : "lora_magnitude_vector";
  return whole(p, fmt::format("base_model.model.{}.{}", module, part));
}

}  // namespace

TensorPlace tensor_place(const ModelSpec& m, const ModelParameter& it) {
  const Parameter& p = it.parameter;
  if (p.adapter != Adapter::none) return adapter_place(m, it);
  if (m.architecture == "gpt2") return gpt2_place(it);
  if (m.architecture == "nemotron_h") return nemotron_h_place(m, it);
  if (it.part == ModelPart::patchify || it.part == ModelPart::vision ||
      it.part == ModelPart::merger) {
    QPLAN_CHECK(m.vision.has_value(), "a vision part belongs to a model with a vision tower");
    return vision_place(*m.vision, it);
  }
  // Llama 4's and Gemma 3's text models stand whole beside their vision towers.
  const bool beside = m.architecture == "llama4" || m.architecture == "gemma3";
  const std::string outer = beside ? "language_model." : "";
  if (p.role == lm_head) return whole(p, outer + "lm_head.weight");
  const std::string model =
      outer + (m.vision && !m.vision->gated ? "model.language_model." : "model.");
  if (it.part == ModelPart::embedding || it.part == ModelPart::head) {
    return whole(p, named(model, module_of(m, p.role), p));
  }
  const std::string layer = layer_prefix(m, it, model);
  if (m.delta_net && !find(kPredictingQwen, p.role).empty()) {
    return whole(p, named("mtp.", find(kPredictingQwen, p.role), p));
  }
  if (is_expert(p.role)) return expert_place(m, it, layer);
  // Tensors that are no module's weight, and one of a convolution.
  if (p.role == linear_dt_bias) return whole(p, layer + "linear_attn.dt_bias");
  if (p.role == linear_a_log) return whole(p, layer + "linear_attn.A_log");
  if (p.role == linear_conv) {
    TensorPlace place = whole(p, named(layer, module_of(m, p.role), p));
    place.shape = {p.rows, 1, p.cols};
    return place;
  }
  if (p.role == sinks) return whole(p, layer + "self_attn.sinks");
  if (p.role == score_correction && m.moe->corrects_softmax) {
    TensorPlace place = whole(p, layer + "mlp.moe_statics.e_score_correction_bias");
    place.shape = {1, p.rows};
    return place;
  }
  if (p.role == score_correction) return whole(p, layer + "mlp.gate.e_score_correction_bias");
  if (stacks_rows(m, p)) return stacked_rows(m, p, layer);
  if (m.qk_norm_each && (p.role == q_norm || p.role == k_norm)) {
    TensorPlace place = whole(p, named(layer, module_of(m, p.role), p));
    place.shape = {p.rows / m.head_dim, m.head_dim};
    return place;
  }
  return whole(p, named(layer, module_of(m, p.role), p));
}

}  // namespace qplan
