// DeepSeek-V2, V3 and V3.2: latent attention, experts in groups. GLM-4.5: their experts behind
// grouped queries.

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "models/config/architectures.h"
#include "models/config/decoder.h"
#include "models/error.h"

namespace qplan::config {
namespace {

MlaSpec read_mla(JsonReader& in) {
  MlaSpec mla;
  // Moonlight writes null: queries are not compressed. Absent means the class's 1536.
  mla.q_lora_rank = integer_unless_null(in, "q_lora_rank", 0, kWidest, 1536, 0);
  mla.kv_lora_rank = in.integer_or("kv_lora_rank", 1, kWidest, 512);
  mla.qk_nope_head_dim = in.integer_or("qk_nope_head_dim", 1, kMostHeads, 128);
  mla.qk_rope_head_dim = in.integer_or("qk_rope_head_dim", 1, kMostHeads, 64);
  mla.v_head_dim = in.integer_or("v_head_dim", 1, kMostHeads, 128);
  return mla;
}

struct DeepseekDefaults {
  std::int64_t shared, dense_layers, groups, topk_group, mtp;
  double scaling;
  bool norm_topk_prob;
  std::string_view scores, method;
};

void read_deepseek_moe(JsonReader& in, const DeepseekDefaults& defaults, ModelSpec& m) {
  MoeSpec moe = read_experts(in, {"n_routed_experts", "num_local_experts", "num_experts"});
  moe.moe_intermediate_size = in.integer("moe_intermediate_size", 1, kWidest);
  moe.shared_expert_intermediate_size =
      moe.moe_intermediate_size *
      integer_unless_null(in, "n_shared_experts", 0, 1024, defaults.shared, 0);
  moe.aux_loss_coefficient = in.number_or("aux_loss_alpha", 0, 1e6, 0.001);
  moe.norm_topk_prob = in.boolean_or("norm_topk_prob", defaults.norm_topk_prob);
  moe.routed_scaling_factor = in.number_or("routed_scaling_factor", 0, 1e6, defaults.scaling);
  moe.sigmoid_scores =
      require_word(in, "scoring_func", defaults.scores, {"softmax", "sigmoid"}) == "sigmoid";
  const std::string method = require_word(in, "topk_method", defaults.method,
                                          {"greedy", "group_limited_greedy", "noaux_tc"});
  moe.router_bias = method == "noaux_tc";
  if (method != "greedy") {
    moe.num_groups = in.integer_or("n_group", 1, kMostExperts, defaults.groups);
    moe.topk_group = in.integer_or("topk_group", 1, kMostExperts, defaults.topk_group);
    check_groups(in, moe);
  }
  const std::int64_t dense =
      in.integer_or("first_k_dense_replace", 0, kMostLayers, defaults.dense_layers);
  const std::int64_t every = in.integer_or("moe_layer_freq", 1, kMostLayers, 1);
  for (std::int64_t i = dense; i < m.num_layers; ++i) {
    m.layers[static_cast<std::size_t>(i)].moe = i % every == 0;
  }
  m.moe = moe;
  m.num_mtp_layers = in.integer_or("num_nextn_predict_layers", 0, 1, defaults.mtp);
}

void read_deepseek(JsonReader& in, const Defaults& decoder, const DeepseekDefaults& defaults,
                   ModelSpec& m) {
  read_decoder(in, decoder, m);
  read_silu(in);
  read_attention_bias(in, false, m);
  m.mla = read_mla(in);
  // MLA expands keys and values for every head, whatever num_key_value_heads says.
  m.num_key_value_heads = m.num_attention_heads;
  m.head_dim = m.mla->qk_nope_head_dim + m.mla->qk_rope_head_dim;
  read_deepseek_moe(in, defaults, m);
}

constexpr DeepseekDefaults kV3{.shared = 1,
                               .dense_layers = 3,
                               .groups = 8,
                               .topk_group = 4,
                               .mtp = 1,
                               .scaling = 2.5,
                               .norm_topk_prob = true,
                               .scores = "sigmoid",
                               .method = "noaux_tc"};

// Which layers have experts, a word each.
void read_mlp_types(JsonReader& in, ModelSpec& m) {
  if (!in.has("mlp_layer_types")) return;
  const Json& types = in.value("mlp_layer_types");
  if (!types.is_array() || types.size() != m.layers.size()) {
    in.fail("mlp_layer_types",
            fmt::format("must be a list of num_hidden_layers ({}) entries", m.layers.size()));
  }
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    m.layers[i].moe = types[i] == "sparse";
    if (m.layers[i].moe || types[i] == "dense") continue;
    in.fail("mlp_layer_types",
            fmt::format("holds {}; only dense and sparse are modelled", shown(types[i].dump())));
  }
}

}  // namespace

// Their own head_dim key is the rotary part; 64 keeps hidden_size free of divisibility.
void read_deepseek_v2(JsonReader& in, ModelSpec& m) {
  read_deepseek(in, {.head_dim = 64, .max_positions = 2048},
                {.shared = 2,
                 .dense_layers = 0,
                 .groups = 1,
                 .topk_group = 1,
                 .mtp = 0,
                 .scaling = 1,
                 .norm_topk_prob = false,
                 .scores = "softmax",
                 .method = "greedy"},
                m);
}

void read_deepseek_v3(JsonReader& in, ModelSpec& m) {
  read_deepseek(in, {.head_dim = 64, .max_positions = 4096}, kV3, m);
}

void read_deepseek_v32(JsonReader& in, ModelSpec& m) {
  read_deepseek(in, {.head_dim = 64, .max_positions = 163840}, kV3, m);
  read_mlp_types(in, m);
  if (m.mla->q_lora_rank == 0) {
    in.fail("q_lora_rank",
            "is null; the indexer reads the compressed queries, which there must be");
  }
  IndexerSpec indexer;
  indexer.num_heads = in.integer_or("index_n_heads", 1, kMostHeads, 64);
  indexer.head_dim = in.integer_or("index_head_dim", 1, kMostHeads, 128);
  indexer.top_k = in.integer_or("index_topk", 1, kMostPositions, 2048);
  m.indexer = indexer;
}

// Heads share keys and values; q, k and v have biases, the output has none (Glm4MoeAttention). Half
// of a head is rotated. The checkpoints' keys say what the class leaves open: without use_qk_norm
// or num_nextn_predict_layers there is neither.
void read_glm4_moe(JsonReader& in, ModelSpec& m) {
  m.rotary_fraction = 0.5;
  read_decoder(in, {.kv_heads = 8, .max_positions = 131072, .norm_epsilon = 1e-5}, m);
  read_silu(in);
  m.qkv_bias = in.boolean_or("attention_bias", false);
  m.qk_norm = in.boolean_or("use_qk_norm", false);
  read_deepseek_moe(in,
                    {.shared = 1,
                     .dense_layers = 1,
                     .groups = 1,
                     .topk_group = 1,
                     .mtp = 0,
                     .scaling = 1,
                     .norm_topk_prob = true,
                     .scores = "sigmoid",
                     .method = "noaux_tc"},
                    m);
}

}  // namespace qplan::config
