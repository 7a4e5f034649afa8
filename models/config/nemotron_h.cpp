// Nemotron-H and Nemotron 3 (arXiv 2504.03624, 2512.20856): layers of one mixer each, by a pattern:
// Mamba-2, attention without rotation, or an MLP, dense or of experts.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/config/architectures.h"
#include "models/config/decoder.h"
#include "models/error.h"

namespace qplan::config {
namespace {

constexpr LayerKind kMamba{.mixer = Mixer::mamba, .mlp = false};
constexpr LayerKind kAttention{.mixer = Mixer::attention, .mlp = false};
constexpr LayerKind kMlp{.mixer = Mixer::none};
constexpr LayerKind kExperts{.moe = true, .mixer = Mixer::none};

struct Symbol {
  char symbol;
  std::string_view word, older;  // transformers', since 5.20 and before
  LayerKind kind;
};
constexpr Symbol kSymbols[] = {{'M', "linear_attention", "mamba", kMamba},
                               {'*', "full_attention", "attention", kAttention},
                               {'-', "mlp", "mlp", kMlp},
                               {'E', "moe", "moe", kExperts}};

std::vector<LayerKind> layers_of_pattern(JsonReader& in, std::string_view key) {
  std::vector<LayerKind> layers;
  for (const char c : in.string_or(key, "")) {
    const auto* found = std::find_if(std::begin(kSymbols), std::end(kSymbols),
                                     [c](const Symbol& s) { return s.symbol == c; });
    if (found == std::end(kSymbols)) {
      in.fail(key,
              fmt::format("holds '{}'; only M, *, - and E are modelled", shown(std::string(1, c))));
    }
    layers.push_back(found->kind);
  }
  return layers;
}

std::vector<LayerKind> layers_of_list(JsonReader& in, std::string_view key) {
  std::vector<LayerKind> layers;
  const Json& words = in.value(key);
  if (!words.is_array()) {
    in.fail(key, fmt::format("must be a list, is {}", std::string(type_name(words))));
  }
  for (const Json& word : words) {
    const auto* found =
        std::find_if(std::begin(kSymbols), std::end(kSymbols), [&](const Symbol& s) {
          return word == std::string(s.word) || word == std::string(s.older);
        });
    if (found == std::end(kSymbols)) {
      in.fail(key, fmt::format("holds {}; only linear_attention, full_attention, mlp and moe are "
                               "modelled",
                               shown(word.dump())));
    }
    layers.push_back(found->kind);
  }
  return layers;
}

// The list where there is one, else the pattern; empty where there is neither.
std::vector<LayerKind> read_layers(JsonReader& in, std::string_view list,
                                   std::string_view pattern) {
  if (in.has(list)) return layers_of_list(in, list);
  return in.has(pattern) ? layers_of_pattern(in, pattern) : std::vector<LayerKind>{};
}

MambaSpec read_mamba(JsonReader& in) {
  MambaSpec s;
  s.num_heads = in.integer_or("mamba_num_heads", 1, kMostHeads, 128);
  s.head_dim = in.integer_or("mamba_head_dim", 1, kMostHeads, 64);
  s.num_groups = in.integer_or("n_groups", 1, kMostHeads, 8);
  s.state_size = in.integer_or("ssm_state_size", 1, kMostHeads, 128);
  s.conv_kernel = in.integer_or("conv_kernel", 1, 1024, 4);
  s.chunk = in.integer_or("chunk_size", 1, kMostHeads, 128);
  s.conv_bias = in.boolean_or("use_conv_bias", true);
  s.step_min = in.number_or("time_step_min", 0, 1e6, 1e-3);  // NemotronHMamba2Mixer.time_step_limit
  require_word(in, "mamba_hidden_act", "silu", {"silu", "swish"});
  if (s.num_heads % s.num_groups != 0) {
    in.fail("mamba_num_heads",
            fmt::format("({}) must be a multiple of n_groups ({})", s.num_heads, s.num_groups));
  }
  if (s.inner() > kWidest || s.conv_dim() > kWidest) {
    in.fail("mamba_num_heads", fmt::format("and the other sizes make {} columns, more than {}",
                                           s.conv_dim(), kWidest));
  }
  for (const std::string_view key : {"use_bias", "mamba_proj_bias"}) {
    if (in.boolean_or(key, false))
      in.fail(key, "is true; only projections without biases are modelled");
  }
  return s;
}

// Scores as DeepSeek-V3's, experts without a gate.
MoeSpec read_latent_experts(JsonReader& in) {
  MoeSpec moe = read_experts(in, {"n_routed_experts", "num_local_experts"});
  moe.moe_intermediate_size = in.integer_or("moe_intermediate_size", 1, kWidest, 7688);
  moe.shared_expert_intermediate_size =
      in.integer_or("moe_shared_expert_intermediate_size", 0, kWidest, 7688);
  moe.latent_size = integer_unless_null(in, "moe_latent_size", 1, kWidest, 0, 0);
  moe.aux_loss_coefficient = in.number_or("router_aux_loss_coef", 0, 1e6, 1e-4);  // Bridge's
  moe.norm_topk_prob = in.boolean_or("norm_topk_prob", true);
  moe.routed_scaling_factor = in.number_or("routed_scaling_factor", 0, 1e6, 1);
  moe.sigmoid_scores = moe.router_bias = true;
  moe.num_groups = in.integer_or("n_group", 1, kMostExperts, 1);
  moe.topk_group = in.integer_or("topk_group", 1, kMostExperts, 1);
  check_groups(in, moe);
  return moe;
}

// Its layers stand in one block of multi-token prediction: what is modelled is attention, then
// experts, which is a layer of both.
void read_prediction(JsonReader& in, ModelSpec& m) {
  m.num_mtp_layers = in.integer_or("num_nextn_predict_layers", 0, 1, 0);
  if (m.num_mtp_layers == 0) return;
  const std::vector<LayerKind> layers =
      read_layers(in, "mtp_layers_block_type", "mtp_hybrid_override_pattern");
  const std::vector<LayerKind> known{kAttention, kExperts};
  if (layers.empty() || layers == known) return;
  in.fail(in.has("mtp_layers_block_type") ? "mtp_layers_block_type" : "mtp_hybrid_override_pattern",
          "is not attention and experts (*E), which alone are modelled");
}

}  // namespace

void read_nemotron_h(JsonReader& in, ModelSpec& m) {
  const bool listed = in.has("layers_block_type");
  const std::string_view key = listed ? "layers_block_type" : "hybrid_override_pattern";
  if (!listed && !in.has(key)) in.fail(key, "is missing; it says what each layer is, as in M*ME");
  const std::vector<LayerKind> layers = read_layers(in, "layers_block_type", key);
  const auto count = static_cast<std::int64_t>(layers.size());
  if (count < 1 || count > kMostLayers) {
    in.fail(key, fmt::format("names {} layers; 1 to {} are possible", count, kMostLayers));
  }
  if (in.has("num_hidden_layers") && in.integer("num_hidden_layers", 1, kMostLayers) != count) {
    in.fail(key, fmt::format("names {} layers, and num_hidden_layers is another number", count));
  }
  read_decoder(in,
               {.kv_heads = 8,
                .head_dim = in.integer_or("attention_head_dim", 1, kMostHeads, 128),
                .intermediate = 21504,
                .layers = count,
                .max_positions = 4096},
               m);
  m.layers = layers;
  m.position = PositionEmbedding::none;
  m.rope_scaling.reset();
  m.mlp = MlpKind::relu2;
  m.wide_norms = true;
  require_word(in, "mlp_hidden_act", "relu2", {"relu2"});
  m.norm_epsilon = in.number_or("layer_norm_epsilon", 0, 1, 1e-5);
  read_attention_bias(in, false, m);
  m.mlp_bias = in.boolean_or("mlp_bias", false);
  m.mamba = read_mamba(in);
  read_prediction(in, m);
  const auto sparse = [](const LayerKind& layer) { return layer.moe; };
  if (m.num_mtp_layers > 0 || std::any_of(layers.begin(), layers.end(), sparse)) {
    m.moe = read_latent_experts(in);
    if (m.mlp_bias) in.fail("mlp_bias", "is true; only experts without biases are modelled");
  }
  const auto scans = [](const LayerKind& layer) { return layer.mixer == Mixer::mamba; };
  if (std::none_of(layers.begin(), layers.end(), scans)) m.mamba.reset();
}

}  // namespace qplan::config
