#include "models/config/decoder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/error.h"

namespace qplan::config {
namespace {

RopeScaling read_rope_scaling(JsonReader& in, std::string_view type, const ModelSpec& m) {
  RopeScaling scaling;
  const bool known = type == "linear" || type == "llama3" || type == "yarn";
  if (!known) return scaling;
  scaling.kind = type == "linear"   ? RopeScalingKind::linear
                 : type == "llama3" ? RopeScalingKind::llama3
                                    : RopeScalingKind::yarn;
  const auto positions = static_cast<double>(m.max_position_embeddings);
  scaling.original_positions = in.number_or("original_max_position_embeddings", 1, 1e12, positions);
  scaling.factor = in.number_or("factor", 1e-6, 1e6, positions / scaling.original_positions);
  scaling.low_freq_factor = in.number_or("low_freq_factor", 1e-6, 1e6, scaling.low_freq_factor);
  scaling.high_freq_factor = in.number_or("high_freq_factor", 1e-6, 1e6, scaling.high_freq_factor);
  scaling.beta_fast = in.number_or("beta_fast", 1e-6, 1e6, scaling.beta_fast);
  scaling.beta_slow = in.number_or("beta_slow", 1e-6, 1e6, scaling.beta_slow);
  scaling.truncate = in.boolean_or("truncate", true);
  scaling.attention_factor = in.number_or("attention_factor", 0, 1e6, 0);
  scaling.mscale = in.number_or("mscale", 0, 1e6, 0);
  scaling.mscale_all_dim = in.number_or("mscale_all_dim", 0, 1e6, 0);
  return scaling;
}

// rope_theta stands at the top, or in rope_parameters since transformers 5, there perhaps once for
// each kind of layer.
void read_rope(JsonReader& in, double theta, ModelSpec& m) {
  m.rope_theta = in.number_or("rope_theta", 1, 1e12, theta);
  m.rotary_fraction = in.number_or("partial_rotary_factor", 0, 1, m.rotary_fraction);
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    if (!in.has(key)) continue;
    const Json* rope = &in.value(key);
    std::string path = in.path_of(key);
    if (rope->is_object() && rope->contains("full_attention")) {
      rope = &rope->at("full_attention");
      path += ".full_attention";
    }
    JsonReader inner(*rope, path);
    m.rope_theta = inner.number_or("rope_theta", 1, 1e12, m.rope_theta);
    m.rotary_fraction = inner.number_or("partial_rotary_factor", 0, 1, m.rotary_fraction);
    const std::string type = inner.string_or("rope_type", inner.string_or("type", "default"));
    if (type != "default" && type != "mrope") m.rope_scaling = read_rope_scaling(inner, type, m);
  }
}

void read_heads(JsonReader& in, const Defaults& defaults, ModelSpec& m) {
  const std::int64_t heads =
      defaults.heads > 0 ? in.integer_or("num_attention_heads", 1, kMostHeads, defaults.heads)
                         : in.integer("num_attention_heads", 1, kMostHeads);
  m.num_attention_heads = heads;
  m.num_key_value_heads =
      integer_unless_null(in, "num_key_value_heads", 1, kMostHeads,
                          defaults.kv_heads == 0 ? heads : defaults.kv_heads, heads);
  if (heads % m.num_key_value_heads != 0) {
    in.fail("num_attention_heads",
            fmt::format("({}) must be a multiple of num_key_value_heads ({})", heads,
                        m.num_key_value_heads));
  }
  m.head_dim = in.integer_or("head_dim", 1, kMostHeads, defaults.head_dim);
  if (m.head_dim != 0) return;
  if (m.hidden_size % heads != 0) {
    in.fail(
        "hidden_size",
        fmt::format("({}) must be a multiple of num_attention_heads ({}) unless head_dim is given",
                    m.hidden_size, heads));
  }
  m.head_dim = m.hidden_size / heads;
}

}  // namespace

std::int64_t integer_unless_null(JsonReader& in, std::string_view key, std::int64_t low,
                                 std::int64_t high, std::int64_t if_absent, std::int64_t if_null) {
  return in.is_null(key) ? if_null : in.integer_or(key, low, high, if_absent);
}

std::string require_word(JsonReader& in, std::string_view key, std::string_view fallback,
                         std::initializer_list<std::string_view> words) {
  std::string word = in.string_or(key, std::string(fallback));
  if (std::find(words.begin(), words.end(), word) == words.end()) {
    in.fail(key, fmt::format("is '{}', which is not modelled for this architecture; it must be {}",
                             shown(word), fmt::join(words, " or ")));
  }
  return word;
}

void read_decoder(JsonReader& in, const Defaults& defaults, ModelSpec& m) {
  m.hidden_size = in.integer("hidden_size", 1, kWidest);
  m.num_layers =
      defaults.layers > 0 ? defaults.layers : in.integer("num_hidden_layers", 1, kMostLayers);
  m.vocab_size = defaults.vocab > 0 ? in.integer_or("vocab_size", 1, kMostWords, defaults.vocab)
                                    : in.integer("vocab_size", 1, kMostWords);
  m.max_position_embeddings =
      in.integer_or("max_position_embeddings", 1, kMostPositions, defaults.max_positions);
  m.intermediate_size = defaults.intermediate > 0
                            ? in.integer_or("intermediate_size", 1, kWidest, defaults.intermediate)
                            : in.integer("intermediate_size", 1, kWidest);
  m.tie_word_embeddings = in.boolean_or("tie_word_embeddings", defaults.tied);
  m.norm_epsilon = in.number_or("rms_norm_eps", 0, 1, defaults.norm_epsilon);
  read_heads(in, defaults, m);
  read_rope(in, defaults.rope_theta, m);
  m.layers.assign(static_cast<std::size_t>(m.num_layers), LayerKind{});
}

void read_silu(JsonReader& in) {
  require_word(in, "hidden_act", "silu", {"silu", "swish"});
}

std::vector<std::int64_t> indices_or(JsonReader& in, std::string_view key, std::int64_t end,
                                     std::vector<std::int64_t> fallback) {
  if (!in.has(key)) return fallback;
  const Json& list = in.value(key);
  if (!list.is_array()) in.fail(key, fmt::format("must be a list, is {}", type_name(list)));
  std::vector<std::int64_t> result;
  for (const Json& item : list) {
    const bool whole = item.is_number_integer() || item.is_number_unsigned();
    const double value = whole ? item.get<double>() : -1;
    if (value < 0 || value >= static_cast<double>(end)) {
      in.fail(key, fmt::format("must hold layer numbers from 0 to {}, holds {}", end - 1,
                               shown(item.dump())));
    }
    result.push_back(item.get<std::int64_t>());
  }
  return result;
}

const Json& read_layer_types(JsonReader& in, std::size_t layers) {
  const Json& types = in.value("layer_types");
  if (!types.is_array() || types.size() != layers) {
    in.fail("layer_types",
            fmt::format("must be a list of num_hidden_layers ({}) entries, is {}", layers,
                        types.is_array() ? fmt::format("one of {}", types.size())
                                         : std::string(type_name(types))));
  }
  return types;
}

void read_windows(JsonReader& in, std::int64_t window,
                  const std::function<bool(std::int64_t)>& slides, ModelSpec& m) {
  if (!in.has("layer_types")) {
    for (std::size_t i = 0; i < m.layers.size(); ++i) {
      if (slides(static_cast<std::int64_t>(i))) m.layers[i].window = window;
    }
    return;
  }
  const Json& types = read_layer_types(in, m.layers.size());
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    if (types[i] == "full_attention") continue;
    if (types[i] != "sliding_attention") {
      in.fail("layer_types", fmt::format("holds {}; only full_attention and sliding_attention are "
                                         "modelled",
                                         shown(types[i].dump())));
    }
    if (window == 0) in.fail("layer_types", "slides, but sliding_window is not set");
    m.layers[i].window = window;
  }
}

void read_spaced_windows(JsonReader& in, std::int64_t window, std::int64_t every, ModelSpec& m) {
  read_windows(
      in, window, [&](std::int64_t i) { return (i + 1) % every != 0; }, m);
}

std::int64_t read_window(JsonReader& in, std::int64_t if_absent) {
  return integer_unless_null(in, "sliding_window", 0, kMostPositions, if_absent, 0);
}

void read_text_alone(JsonReader& in, void (*read)(JsonReader&, ModelSpec&), ModelSpec& m) {
  JsonReader text(in.value("text_config"), in.path_of("text_config"));
  read(text, m);
  m.tie_word_embeddings = in.boolean_or("tie_word_embeddings", m.tie_word_embeddings);
  if (in.has("vision_config")) m.left_out.emplace_back("vision tower");
}

void read_attention_bias(JsonReader& in, bool fallback, ModelSpec& m) {
  m.qkv_bias = m.attention_output_bias = in.boolean_or("attention_bias", fallback);
}

MoeSpec read_experts(JsonReader& in, std::initializer_list<std::string_view> names,
                     std::initializer_list<std::string_view> per_token) {
  const auto present = [&](std::initializer_list<std::string_view> list) {
    const auto* found =
        std::find_if(list.begin(), list.end(), [&](std::string_view name) { return in.has(name); });
    return found == list.end() ? *list.begin() : *found;
  };
  MoeSpec moe;
  moe.num_experts = in.integer(present(names), 1, kMostExperts);
  moe.top_k = in.integer(present(per_token), 1, kMostExperts);
  if (moe.top_k > moe.num_experts) {
    in.fail(present(per_token),
            fmt::format("({}) must not exceed the {} experts", moe.top_k, moe.num_experts));
  }
  moe.aux_loss_coefficient = in.number_or("router_aux_loss_coef", 0, 1e6, 0.001);
  return moe;
}

void check_groups(JsonReader& in, const MoeSpec& moe) {
  if (moe.num_experts % moe.num_groups != 0) {
    in.fail("n_group",
            fmt::format("({}) must divide n_routed_experts ({})", moe.num_groups, moe.num_experts));
  }
  if (moe.topk_group > moe.num_groups) {
    in.fail("topk_group",
            fmt::format("({}) must not exceed n_group ({})", moe.topk_group, moe.num_groups));
  }
  const std::int64_t reachable = moe.num_experts / moe.num_groups * moe.topk_group;
  if (moe.top_k > reachable) {
    in.fail("num_experts_per_tok", fmt::format("({}) must not exceed the {} experts in {} groups",
                                               moe.top_k, reachable, moe.topk_group));
  }
}

}  // namespace qplan::config
