#pragma once
// Every parameter of a model, whatever the plan: what it is, its shape, what tensor parallelism
// splits, and where a Hugging Face checkpoint keeps it. Counts, rank shares, seeded weights and
// checkpoints are all read from these tables.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "models/lora.h"
#include "models/model_spec.h"

namespace qplan {

// Hugging Face's module names, where architectures agree on one; expert_* are one expert's.
enum class ParameterRole : std::uint8_t {
  embed_tokens,
  embed_positions,  // learned positions (GPT-2, the vision tower)
  input_norm,
  q_proj,
  k_proj,
  v_proj,
  q_norm,
  k_norm,
  sinks,
  o_proj,
  q_a_proj,  // MLA: down projection, norm, up projection of the queries, ...
  q_a_norm,
  q_b_proj,
  kv_a_proj,  // ... and of keys and values; its last qk_rope_head_dim rows are the shared rope key
  kv_a_norm,
  kv_b_proj,
  index_q_proj,  // DeepSeek-V3.2's indexer: queries of the compressed ones, one key, heads' weights
  index_k_proj,
  index_k_norm,
  index_weights_proj,
  attention_out_norm,  // of what attention adds to the residual stream
  linear_qkvz_proj,    // Gated DeltaNet (linear_attn): Qwen3-Next's projections ...
  linear_ba_proj,
  linear_qkv_proj,  // ... and Qwen3.5's
  linear_z_proj,
  linear_b_proj,
  linear_a_proj,
  mamba_in_proj,  // Mamba-2: gate, x, B, C and step sizes ...
  mamba_skip,     // ... and D, what of x is added to the scan's output
  linear_conv,    // both kinds'
  linear_dt_bias,
  linear_a_log,
  linear_norm,
  linear_out_proj,
  post_attention_norm,
  gate_proj,
  up_proj,
  down_proj,
  mlp_out_norm,  // of what the MLP or the experts add
  router,
  score_correction,  // DeepSeek-V3's e_score_correction_bias: chosen by, never trained by gradient
  shared_gate_proj,
  shared_up_proj,
  shared_down_proj,
  shared_expert_gate,
  latent_down_proj,  // Nemotron 3 Super: before tokens are sent to experts ...
  latent_up_proj,    // ... and after
  expert_gate_proj,
  expert_up_proj,
  expert_down_proj,
  final_norm,
  lm_head,
  mtp_embed_norm,   // enorm
  mtp_hidden_norm,  // hnorm
  mtp_proj,         // eh_proj: [embedding; hidden] -> hidden
  mtp_final_norm,   // shared_head.norm
  patch_embed,
  merger_norm,
  merger_fc1,
  merger_fc2,
  deepstack_norm,  // the mergers of the tower's taps
  deepstack_fc1,
  deepstack_fc2
};

template <>
struct Words<ParameterRole> {
  static constexpr std::string_view what = "parameter role";
  static constexpr auto table = std::to_array<std::pair<ParameterRole, std::string_view>>(
      {{ParameterRole::embed_tokens, "embed_tokens"},
       {ParameterRole::embed_positions, "embed_positions"},
       {ParameterRole::input_norm, "input_norm"},
       {ParameterRole::q_proj, "q_proj"},
       {ParameterRole::k_proj, "k_proj"},
       {ParameterRole::v_proj, "v_proj"},
       {ParameterRole::q_norm, "q_norm"},
       {ParameterRole::k_norm, "k_norm"},
       {ParameterRole::sinks, "sinks"},
       {ParameterRole::o_proj, "o_proj"},
       {ParameterRole::q_a_proj, "q_a_proj"},
       {ParameterRole::q_a_norm, "q_a_norm"},
       {ParameterRole::q_b_proj, "q_b_proj"},
       {ParameterRole::kv_a_proj, "kv_a_proj"},
       {ParameterRole::kv_a_norm, "kv_a_norm"},
       {ParameterRole::kv_b_proj, "kv_b_proj"},
       {ParameterRole::index_q_proj, "index_q_proj"},
       {ParameterRole::index_k_proj, "index_k_proj"},
       {ParameterRole::index_k_norm, "index_k_norm"},
       {ParameterRole::index_weights_proj, "index_weights_proj"},
       {ParameterRole::attention_out_norm, "attention_out_norm"},
       {ParameterRole::linear_qkvz_proj, "linear_qkvz_proj"},
       {ParameterRole::linear_ba_proj, "linear_ba_proj"},
       {ParameterRole::linear_qkv_proj, "linear_qkv_proj"},
       {ParameterRole::linear_z_proj, "linear_z_proj"},
       {ParameterRole::linear_b_proj, "linear_b_proj"},
       {ParameterRole::linear_a_proj, "linear_a_proj"},
       {ParameterRole::mamba_in_proj, "mamba_in_proj"},
       {ParameterRole::mamba_skip, "mamba_skip"},
       {ParameterRole::linear_conv, "linear_conv"},
       {ParameterRole::linear_dt_bias, "linear_dt_bias"},
       {ParameterRole::linear_a_log, "linear_a_log"},
       {ParameterRole::linear_norm, "linear_norm"},
       {ParameterRole::linear_out_proj, "linear_out_proj"},
       {ParameterRole::post_attention_norm, "post_attention_norm"},
       {ParameterRole::gate_proj, "gate_proj"},
       {ParameterRole::up_proj, "up_proj"},
       {ParameterRole::down_proj, "down_proj"},
       {ParameterRole::mlp_out_norm, "mlp_out_norm"},
       {ParameterRole::router, "router"},
       {ParameterRole::score_correction, "score_correction"},
       {ParameterRole::shared_gate_proj, "shared_gate_proj"},
       {ParameterRole::shared_up_proj, "shared_up_proj"},
       {ParameterRole::shared_down_proj, "shared_down_proj"},
       {ParameterRole::shared_expert_gate, "shared_expert_gate"},
       {ParameterRole::latent_down_proj, "latent_down_proj"},
       {ParameterRole::latent_up_proj, "latent_up_proj"},
       {ParameterRole::expert_gate_proj, "expert_gate_proj"},
       {ParameterRole::expert_up_proj, "expert_up_proj"},
       {ParameterRole::expert_down_proj, "expert_down_proj"},
       {ParameterRole::final_norm, "final_norm"},
       {ParameterRole::lm_head, "lm_head"},
       {ParameterRole::mtp_embed_norm, "mtp_embed_norm"},
       {ParameterRole::mtp_hidden_norm, "mtp_hidden_norm"},
       {ParameterRole::mtp_proj, "mtp_proj"},
       {ParameterRole::mtp_final_norm, "mtp_final_norm"},
       {ParameterRole::patch_embed, "patch_embed"},
       {ParameterRole::merger_norm, "merger_norm"},
       {ParameterRole::merger_fc1, "merger_fc1"},
       {ParameterRole::merger_fc2, "merger_fc2"},
       {ParameterRole::deepstack_norm, "deepstack_norm"},
       {ParameterRole::deepstack_fc1, "deepstack_fc1"},
       {ParameterRole::deepstack_fc2, "deepstack_fc2"}});
};

// Whether a parameter is a weight of the model, or one of an adapter beside that weight: PEFT's
// lora_A (rank, in) and lora_B (out, rank), and DoRA's lora_magnitude_vector (out, 1).
enum class Adapter : std::uint8_t { none, lora_a, lora_b, magnitude };

// What of a parameter a tensor-parallel rank holds (experts': a rank of etp).
enum class Split : std::uint8_t {
  none,        // all of it
  rows,        // its share of the rows (column-parallel weights (out, in) and their biases)
  cols,        // its share of the columns (row-parallel weights)
  vocabulary,  // rows, after padding the vocabulary so that every rank has as many
};

// One parameter of a block. A linear layer's weight is (out, in), y = x W^T; a vector is (n, 1).
struct Parameter {
  ParameterRole role = ParameterRole::embed_tokens;
  bool bias = false;  // the bias of `role`, not its weight
  std::int64_t rows = 0, cols = 1;
  Split split = Split::none;
  std::int64_t copies = 1;  // alike and side by side: experts (split over ep), deepstack mergers
  // Rows of what is stacked in it and split part by part, each rank a share of every part (queries,
  // keys, values of a convolution's channels); all 0: the rows are one part.
  std::array<std::int64_t, 5> parts{};
  Adapter adapter = Adapter::none;                                     // of `role`'s weight
  [[nodiscard]] std::int64_t elements() const { return rows * cols; }  // of one copy
  bool operator==(const Parameter&) const = default;
};

// Whether it belongs to an expert: split over etp and ep, reduced over edp; else over tp, dp_cp.
bool is_expert(ParameterRole role);
// Whether AdamW moves it.
bool is_trained(ParameterRole role);
// Whether it scales (weight) or shifts (bias) a normalised row.
bool is_norm(ParameterRole role);
// Whether it is the weight of a linear layer of attention, an MLP or experts, or of MTP's
// projection: what low precision multiplies. The router's and those at the vocabulary are not.
bool is_projection(const Parameter& parameter);
// Whether it has one dim only: norms, biases, sinks, the score correction.
bool is_vector(const Parameter& parameter);

// Whether Muon orthogonalises it: a matrix of a hidden layer. Embeddings, the head, convolutions
// and vectors are Adam's (is_managed_by_layer_wise_optimizer in Megatron-LM d98e8a64,
// megatron/core/optimizer/layer_wise_optimizer.py).
bool is_hidden_matrix(const Parameter& parameter);

// Where in a model a parameter is used.
enum class ModelPart : std::uint8_t { embedding, decoder, head, mtp, patchify, vision, merger };

// Whether LoRA adapts layers there: those of the decoder, not of a vision tower (PEFT's
// "all-linear" reaches the tower, too; recipes for vision-language models leave it frozen).
bool has_adapters(ModelPart part);

// The parameters of one block, in the order in which a rank packs them: q, k, v and gate, up are
// neighbours, so that each group is one matrix. `kind` matters to decoder layers. The head of a
// tied model has its norm only.
std::vector<Parameter> parameters_of(const ModelSpec& model, ModelPart part,
                                     const LayerKind& kind = {});

// The first of the weights that are one packed layer with this one, where the model has it: q_proj
// of k_proj and v_proj, gate of up (Megatron's linear_qkv, linear_fc1, in_proj). Else itself.
ParameterRole pack_begin(ParameterRole role);

// The adapters of a block with these parameters: all A, then all B, then all magnitudes, each in
// the table's order, so that those of weights packed side by side (q, k, v) are neighbours, too. An
// adapter is split with its weight: of a column-parallel one the rows of B and the magnitudes, of a
// row-parallel one A's columns; a parallel adapter's other matrix by its rows, too. One beside
// several weights bears the first one's role.
std::vector<Parameter> adapters_of(const std::vector<Parameter>& table, const Lora& lora);

// The targets that any decoder layer of the model has.
LoraTargets targets_of(const ModelSpec& model);

// One parameter of the whole model.
struct ModelParameter {
  Parameter parameter;
  ModelPart part = ModelPart::embedding;
  std::int64_t layer = 0;  // within the part
  std::int64_t copy = 0;   // which expert or deepstack merger
  std::int64_t index = 0;  // position in the list below, the same for every plan
};

// All of them: embedding, decoder layers, head, MTP layers, vision tower. The order is fixed, for
// seeded weights depend on `index`: adapters come after all of them.
std::vector<ModelParameter> model_parameters(const ModelSpec& model, const Lora& lora = {});

// Where a checkpoint keeps a parameter: element (r, c) is element begin + r * row_stride +
// c * col_stride of the named tensor. Strides tell GPT-2's transposed weights, fused q|k|v, and
// experts that share one tensor.
struct TensorPlace {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, row_stride = 1, col_stride = 1;
};

// Names are those of the checkpoints that transformers 5.23 reads and writes for the model's class
// (gpt2 for the GPT-3 and Megatron models); MTP's are those of DeepSeek-V3's own checkpoint.
TensorPlace tensor_place(const ModelSpec& model, const ModelParameter& parameter);

}  // namespace qplan
