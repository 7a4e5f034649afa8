// Baidu's ERNIE 4.5 and Tencent's Hunyuan V1, dense and of experts.

#include <fmt/format.h>

#include <string_view>

#include "models/config/architectures.h"
#include "models/config/decoder.h"

namespace qplan::config {
namespace {

// One bias for all: of attention and of MLPs.
void read_ernie(JsonReader& in, const Defaults& defaults, ModelSpec& m) {
  read_decoder(in, defaults, m);
  read_silu(in);
  m.qkv_bias = m.attention_output_bias = m.mlp_bias = in.boolean_or("use_bias", false);
  m.rotary_interleaved = true;
}

// The number that a class takes once, or once a layer, where only equal ones are modelled.
std::int64_t same_in_every_layer(JsonReader& in, std::string_view key, std::int64_t low,
                                 std::int64_t high, std::int64_t fallback) {
  if (!in.has(key) || !in.value(key).is_array()) return in.integer_or(key, low, high, fallback);
  const Json& list = in.value(key);
  for (const Json& item : list) {
    if (item != list.front()) in.fail(key, "differs between layers, which is not modelled");
  }
  if (list.empty()) in.fail(key, "is an empty list");
  const Json once{{std::string(key), list.front()}};
  JsonReader first(once, in.path());
  return first.integer(key, low, high);
}

// Norms of queries and keys, which these classes always have, stand behind the rotation.
void read_hunyuan(JsonReader& in, ModelSpec& m) {
  read_decoder(in, {.max_positions = 2048, .norm_epsilon = 1e-5}, m);
  read_silu(in);
  read_attention_bias(in, false, m);
  m.qk_norm = true;
  m.unmodelled.emplace_back("norms of queries and keys behind their rotation");
  if (in.boolean_or("use_cla", false)) {
    in.fail("use_cla", "is true; layers that share keys and values are not modelled");
  }
  if (!in.boolean_or("use_qk_norm", true)) {
    in.fail("use_qk_norm", "is false; transformers' class always has these norms");
  }
}

}  // namespace

void read_ernie4_5(JsonReader& in, ModelSpec& m) {
  read_ernie(in,
             {.kv_heads = 2,
              .head_dim = 128,
              .max_positions = 131072,
              .rope_theta = 5e5,
              .norm_epsilon = 1e-5,
              .tied = true},
             m);
}

// A softmax whose scores are corrected as DeepSeek-V3's are. Prediction of further tokens, which
// checkpoints have weights of, is not in transformers' class.
void read_ernie4_5_moe(JsonReader& in, ModelSpec& m) {
  read_ernie(in,
             {.kv_heads = 4,
              .max_positions = 131072,
              .rope_theta = 5e5,
              .norm_epsilon = 1e-5,
              .tied = true},
             m);
  if (m.mlp_bias) in.fail("use_bias", "is true; only experts without biases are modelled");
  MoeSpec moe =
      read_experts(in, {"moe_num_experts", "num_experts"}, {"moe_k", "num_experts_per_tok"});
  moe.moe_intermediate_size = in.integer("moe_intermediate_size", 1, kWidest);
  moe.shared_expert_intermediate_size =
      moe.moe_intermediate_size * in.integer_or("moe_num_shared_experts", 0, 1024, 2);
  moe.router_bias = moe.corrects_softmax = true;
  const std::int64_t first = in.integer_or("moe_layer_start_index", 0, kMostLayers, 1);
  const std::int64_t last = in.integer_or("moe_layer_end_index", -1, kMostLayers, -1);
  const std::int64_t every = in.integer_or("moe_layer_interval", 1, kMostLayers, 1);
  for (std::int64_t i = first; i < m.num_layers && (last < 0 || i <= last); ++i) {
    m.layers[static_cast<std::size_t>(i)].moe = (i + 1) % every == 0;
  }
  m.moe = moe;
}

void read_hunyuan_v1_dense(JsonReader& in, ModelSpec& m) {
  read_hunyuan(in, m);
}

// Experts as wide as the dense MLP would be, and one more that every token visits.
void read_hunyuan_v1_moe(JsonReader& in, ModelSpec& m) {
  read_hunyuan(in, m);
  MoeSpec moe;
  moe.num_experts = same_in_every_layer(in, "num_experts", 1, kMostExperts, 1);
  moe.top_k = same_in_every_layer(in, "moe_topk", 1, kMostExperts, 1);
  if (moe.top_k > moe.num_experts) {
    in.fail("moe_topk",
            fmt::format("({}) must not exceed the {} experts", moe.top_k, moe.num_experts));
  }
  moe.moe_intermediate_size = moe.shared_expert_intermediate_size = m.intermediate_size;
  if (same_in_every_layer(in, "moe_intermediate_size", 1, kWidest, m.intermediate_size) !=
      m.intermediate_size) {
    in.fail("moe_intermediate_size",
            fmt::format("must be intermediate_size ({}), as in transformers' class",
                        m.intermediate_size));
  }
  if (same_in_every_layer(in, "num_shared_expert", 1, 1024, 1) != 1) {
    in.fail("num_shared_expert", "must be 1, as in transformers' class");
  }
  moe.aux_loss_coefficient = 0.001;
  m.moe = moe;
  for (LayerKind& layer : m.layers) layer.moe = true;
}

}  // namespace qplan::config
