#pragma once
// What a model is: the shapes of a Hugging Face config.json, normalised. Read strictly; nothing is
// guessed that the architecture's own code would not default.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/json_fwd.h"
#include "models/words.h"

namespace qplan {

enum class Norm : std::uint8_t { rms_norm, layer_norm };
enum class MlpKind : std::uint8_t { swiglu, gelu, relu2 };  // relu2: squared ReLU (Nemotron-4)
enum class PositionEmbedding : std::uint8_t { rope, learned, none };
// Where a layer's norms stand: before attention and MLP, as in most models; behind them, on what
// they add to the residual stream (OLMo 2); or both (Gemma, GLM-4).
enum class NormPlace : std::uint8_t { before, behind, both };
// How the tokens of a sequence learn of each other within a layer. none: the layer is an MLP alone.
enum class Mixer : std::uint8_t { attention, delta_net, mamba, none };

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434). q_lora_rank 0: full query
// projection.
struct MlaSpec {
  std::int64_t q_lora_rank = 0, kv_lora_rank = 0;
  std::int64_t qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  bool operator==(const MlaSpec&) const = default;
};

// DeepSeek-V3.2's lightning indexer (arXiv 2512.02556, section 2.1) beside latent attention: heads
// of its own, which share one key, score all keys before a query; attention then sees the top_k.
struct IndexerSpec {
  std::int64_t num_heads = 0, head_dim = 0, top_k = 0;
  bool operator==(const IndexerSpec&) const = default;
};

// Gated DeltaNet (arXiv 2412.06464) in attention's place: a state of key_head_dim x value_head_dim
// for each value head, which a chunk of tokens reads and corrects, and no scores between tokens far
// apart. Queries and keys of one head serve num_value_heads / num_key_heads value heads.
struct DeltaNetSpec {
  std::int64_t num_key_heads = 0, num_value_heads = 0;
  std::int64_t key_head_dim = 0, value_head_dim = 0;
  std::int64_t conv_kernel = 4;  // tokens that the convolution before the rule sees
  // Qwen3-Next: in_proj_qkvz and in_proj_ba; Qwen3.5 has a layer for each of q|k|v, z, b and a.
  bool packed_projections = true;
  [[nodiscard]] std::int64_t key_dim() const { return num_key_heads * key_head_dim; }
  [[nodiscard]] std::int64_t value_dim() const { return num_value_heads * value_head_dim; }
  [[nodiscard]] std::int64_t conv_dim() const { return 2 * key_dim() + value_dim(); }
  bool operator==(const DeltaNetSpec&) const = default;
};

// Mamba-2 (arXiv 2405.21060) in attention's place: a state of head_dim x state_size a head, which
// decays and takes each token in; the heads of a group share what is written and read (B and C, as
// keys and queries are shared in attention).
struct MambaSpec {
  std::int64_t num_heads = 0, head_dim = 0, num_groups = 0, state_size = 0;
  std::int64_t conv_kernel = 4;  // tokens that the convolution before the scan sees
  std::int64_t chunk = 128;      // tokens that the scan works on at once
  bool conv_bias = true;
  double step_min = 0;  // step sizes are no smaller (changes results, not costs)
  [[nodiscard]] std::int64_t inner() const { return num_heads * head_dim; }
  [[nodiscard]] std::int64_t conv_dim() const { return inner() + 2 * num_groups * state_size; }
  // Gate, what the convolution reads, and a step size a head.
  [[nodiscard]] std::int64_t projected() const { return inner() + conv_dim() + num_heads; }
  bool operator==(const MambaSpec&) const = default;
};

struct MoeSpec {
  std::int64_t num_experts = 0, top_k = 0;
  std::int64_t moe_intermediate_size = 0;
  // Nemotron 3 Super: tokens are projected to this width before they are sent to experts, and back
  // after; router and shared expert see the hidden width. 0: experts work in the hidden width.
  std::int64_t latent_size = 0;
  std::int64_t shared_expert_intermediate_size = 0;  // all shared experts together; 0: none
  bool shared_expert_gate = false;                   // Qwen2-MoE: a (hidden, 1) gate
  bool router_bias = false;                     // V3's e_score_correction_bias, gpt-oss router bias
  bool expert_bias = false;                     // gpt-oss: biases in the expert projections
  bool sigmoid_scores = false;                  // DeepSeek-V3; else softmax
  bool corrects_softmax = false;                // ERNIE 4.5: router_bias is V3's, of a softmax
  std::int64_t num_groups = 1, topk_group = 1;  // device-limited routing
  double aux_loss_coefficient = 0;
  bool norm_topk_prob = true;        // the chosen experts' weights are scaled to sum to 1
  double routed_scaling_factor = 1;  // and then by this
  bool scales_inputs = false;        // Llama 4: weights scale what experts read, not what they make
  // Columns of the rows that experts take and give.
  [[nodiscard]] std::int64_t expert_width(std::int64_t hidden) const {
    return latent_size > 0 ? latent_size : hidden;
  }
  bool operator==(const MoeSpec&) const = default;
};

// A vision tower of Qwen's: patches -> encoder layers -> mergers into the text width.
struct VisionSpec {
  std::int64_t depth = 0, hidden_size = 0, intermediate_size = 0, num_heads = 0;
  std::int64_t patch_size = 0, temporal_patch_size = 0, in_channels = 3, spatial_merge_size = 2;
  std::int64_t num_position_embeddings = 0, out_hidden_size = 0;
  std::vector<std::int64_t> deepstack_layers;  // taps; each has a merger of its own
  // Qwen2.5-VL: RMSNorms, gated MLPs, no learned positions, and layers that attend within windows
  // of so many patches but for the listed ones; 0: every layer attends to the whole image.
  bool gated = false;
  std::int64_t window_patches = 0;
  std::vector<std::int64_t> whole_layers;
  // The text's rotary pairs that turn by time, height and width. Interleaved: of every three, the
  // second turns by height and the third by width, until there have been as many.
  std::array<std::int64_t, 3> mrope_section{24, 20, 20};
  bool operator==(const VisionSpec&) const = default;
};

// Rotary frequencies stretched beyond the positions that the model was trained on first, by the
// rules of transformers' modeling_rope_utils.py. Executed; priced only as rope_magnitude().
enum class RopeScalingKind : std::uint8_t { linear, llama3, yarn, other };
struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::other;  // other: a rule that is not executed
  double factor = 1;
  double original_positions = 0;                     // original_max_position_embeddings
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn (arXiv 2309.00071)
  bool truncate = true;
  double attention_factor = 0;            // on cosines and sines; 0: follows from the others
  double mscale = 0, mscale_all_dim = 0;  // DeepSeek's; the second scales scores too
  bool operator==(const RopeScaling&) const = default;
};

// YaRN's 0.1 * mscale * ln(factor) + 1; 1 where nothing is stretched.
double yarn_magnitude(double factor, double mscale);
// What a scaling multiplies cosines and sines by.
double rope_magnitude(const std::optional<RopeScaling>& scaling);

// One decoder layer as far as layers of a model differ.
struct LayerKind {
  bool moe = false;
  std::int64_t window = 0;  // sliding-window length in tokens; 0: full attention
  Mixer mixer = Mixer::attention;
  bool mlp = true;      // and an MLP after it, dense or of experts; Nemotron-H has one or the other
  bool rotates = true;  // Llama 4: not all layers do of a model with rotary embedding
  std::int64_t chunk = 0;  // tokens that attend to each other alone (Llama 4); 0: full attention
  [[nodiscard]] bool dense_mlp() const { return mlp && !moe; }
  bool operator==(const LayerKind&) const = default;
};

// A config.json of a model_type that is unknown, read as an architecture that is not its own.
struct ReadAs {
  std::string model_type;                 // its own, "" where it has none
  std::vector<std::string> ignored_keys;  // that the architecture has no word for
  bool operator==(const ReadAs&) const = default;
};

struct ModelSpec {
  std::string name;          // zoo name or file stem
  std::string architecture;  // Hugging Face model_type

  std::int64_t hidden_size = 0, num_layers = 0, vocab_size = 0, max_position_embeddings = 0;
  std::int64_t intermediate_size = 0;  // dense MLP
  std::int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  MlpKind mlp = MlpKind::swiglu;
  bool gelu_gate = false;  // swiglu's gate goes through a GELU (Gemma), which costs the same
  Norm norm = Norm::rms_norm;
  NormPlace norm_place = NormPlace::before;
  // Cohere: attention and MLP read one norm of the layer's input, and both are added to it.
  bool parallel_mlp = false;
  PositionEmbedding position = PositionEmbedding::rope;
  bool qk_norm = false;        // RMSNorm over head_dim of q and k
  bool qk_norm_whole = false;  // ... over all heads together instead
  bool qk_norm_each = false;   // ... over a head, with weights of its own for each (Cohere)
  bool qk_l2_norm = false;     // Llama 4: the same without weights, in layers that rotate
  bool qkv_bias = false, attention_output_bias = false, mlp_bias = false;
  bool attention_sinks = false;  // gpt-oss: one learned logit a head
  // Qwen3-Next: what attention gives is multiplied by the sigmoid of as many numbers, which the
  // query projection makes beside the queries.
  bool attention_output_gate = false;
  bool zero_centered_norms = false;  // norms scale by 1 + weight
  bool wide_norms = false;           // Hugging Face's scale in fp32; those by 1 + weight always do
  bool tie_word_embeddings = false;
  bool causal = true;  // false: an encoder (the vision tower)
  // Numbers that change results, not costs; the executor reads them.
  double norm_epsilon = 1e-6, rope_theta = 10000, rotary_fraction = 1;
  bool rotary_interleaved = false;  // the two numbers that turn together lie side by side
  // Llama 4: queries of layers that do not rotate grow with the logarithm of their position, a step
  // every so many tokens, times a scale; 0: they do not.
  std::int64_t temperature_step = 0;
  double temperature_scale = 0.1;
  std::optional<RopeScaling> rope_scaling;

  std::optional<MlaSpec> mla;
  std::optional<IndexerSpec> indexer;     // with mla
  std::optional<DeltaNetSpec> delta_net;  // of the layers that say so
  std::optional<MambaSpec> mamba;         // of the layers that say so
  std::optional<MoeSpec> moe;
  std::optional<VisionSpec> vision;
  std::int64_t num_mtp_layers = 0;  // multi-token-prediction layers after the decoder (DeepSeek-V3)
  // Times that the one such layer is applied, to its own result, each time for a token further on
  // (Megatron's --mtp-use-repeated-layer).
  std::int64_t mtp_passes = 1;
  double mtp_loss_weight = 0.1;  // of their mean loss (Megatron's --mtp-loss-scaling-factor)

  std::vector<LayerKind> layers;  // num_layers entries, in order

  // What the config says and no word above does ("logits scaled by 0.0625"): it changes results and
  // next to nothing of time and memory, so it is told and not priced, and never executed.
  std::vector<std::string> unmodelled;
  std::vector<std::string> left_out;  // parts of the model that are not planned ("vision tower")
  std::optional<ReadAs> read_as;

  bool operator==(const ModelSpec&) const = default;
};

template <>
struct Words<MlpKind> {
  static constexpr std::string_view what = "MLP kind";
  static constexpr auto table = std::to_array<std::pair<MlpKind, std::string_view>>(
      {{MlpKind::swiglu, "swiglu"}, {MlpKind::gelu, "gelu"}, {MlpKind::relu2, "relu2"}});
};

// Parameters by part, of the whole model (not of a rank). MTP and vision are counted apart.
struct ParameterCount {
  std::int64_t embedding = 0;  // input embedding (and learned positions)
  std::int64_t head = 0;       // output projection; 0 when tied
  std::int64_t layers = 0;     // decoder layers, all experts, and the final norm
  std::int64_t mtp = 0, vision = 0;
  std::int64_t inactive_experts = 0;  // expert parameters that one token does not use
  [[nodiscard]] std::int64_t total() const { return embedding + head + layers + vision; }
  [[nodiscard]] std::int64_t active() const { return total() - inactive_experts; }
};
ParameterCount count_parameters(const ModelSpec& model);

// The parameters of one decoder layer of this kind, all experts.
std::int64_t layer_parameters(const ModelSpec& model, const LayerKind& kind);

// FLOPs of the decoder layers' products over those of their attention (causal, at its windows),
// both over a sequence of so many tokens; experts as one token uses them. 0 without attention.
double products_beside_attention(const ModelSpec& model, std::int64_t seq_len);

// The layers of a vision tower as a model of their own: an encoder with LayerNorms, GELU and biases
// throughout (Qwen3VLMoeVision*), or one with RMSNorms and gated MLPs (Qwen2_5_VLVision*).
ModelSpec tower_spec(const VisionSpec& vision);

// What an answer about the model should say besides: what is not modelled, left out or ignored.
std::vector<std::string> model_notes(const ModelSpec& model);

// Reads a config.json that has been parsed; `where` names it in messages. `as`: the architecture to
// read one of an unknown model_type as. Throws Error for an unknown architecture (lists the known),
// missing keys (all of them), wrong types, impossible sizes.
ModelSpec read_model(const Json& config, std::string_view where, std::string_view as = "");

// A zoo name, a config.json, or a folder that holds one. Throws Error with the nearest zoo name.
ModelSpec load_model(const std::string& name_or_path, std::string_view as = "");

// Whether load_model() has a built-in model of this name, its publisher's prefix and case aside.
bool is_built_in(std::string_view name);

// The built-in models, sorted by name.
std::vector<std::string> model_names();

// The Hugging Face-shaped JSON of a model that load_model() accepted, for plan files.
Json model_config(const std::string& name_or_path);

}  // namespace qplan
