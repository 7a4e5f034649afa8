// read_model(): a Hugging Face config.json, one function an architecture. Defaults are those of the
// architecture's own class (transformers 5.23, models/*/configuration_*.py; Kimi-K2 is read as
// DeepSeek-V3, as its own code does). The sizes that make the model have none and are required.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "models/error.h"
#include "models/model_spec.h"

namespace qplan {
namespace {

// Far above any model, and small enough that a layer's parameters fit 63 bits.
constexpr std::int64_t kMostLayers = std::int64_t{1} << 14;
constexpr std::int64_t kMostHeads = std::int64_t{1} << 16;
constexpr std::int64_t kMostExperts = std::int64_t{1} << 14;
constexpr std::int64_t kWidest = std::int64_t{1} << 20;
constexpr std::int64_t kMostWords = std::int64_t{1} << 28;
constexpr std::int64_t kMostPositions = std::int64_t{1} << 32;
constexpr double kMostParameters = 1e15;

// What classes default to where they differ; 0 heads or width: follow from the query heads.
struct Defaults {
  std::int64_t kv_heads = 0, head_dim = 0;
  std::int64_t max_positions = 32768;
  double rope_theta = 10000, norm_epsilon = 1e-6;
};

// Null is a value for these keys, another than that of an absent one.
std::int64_t integer_unless_null(JsonReader& in, std::string_view key, std::int64_t low,
                                 std::int64_t high, std::int64_t if_absent, std::int64_t if_null) {
  return in.is_null(key) ? if_null : in.integer_or(key, low, high, if_absent);
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

void require_word(JsonReader& in, std::string_view key, std::string_view fallback,
                  std::initializer_list<std::string_view> words) {
  const std::string word = in.string_or(key, std::string(fallback));
  if (std::find(words.begin(), words.end(), word) == words.end()) {
    in.fail(key, fmt::format("is '{}', which is not modelled for this architecture; it must be {}",
                             shown(word), fmt::join(words, " or ")));
  }
}

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
  const std::int64_t heads = in.integer("num_attention_heads", 1, kMostHeads);
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

// What all but GPT-2 spell alike. Layers are full attention with dense MLPs until told otherwise.
void read_decoder(JsonReader& in, const Defaults& defaults, ModelSpec& m) {
  m.hidden_size = in.integer("hidden_size", 1, kWidest);
  m.num_layers = in.integer("num_hidden_layers", 1, kMostLayers);
  m.vocab_size = in.integer("vocab_size", 1, kMostWords);
  m.max_position_embeddings =
      in.integer_or("max_position_embeddings", 1, kMostPositions, defaults.max_positions);
  m.intermediate_size = in.integer("intermediate_size", 1, kWidest);
  m.tie_word_embeddings = in.boolean_or("tie_word_embeddings", false);
  m.norm_epsilon = in.number_or("rms_norm_eps", 0, 1, defaults.norm_epsilon);
  read_heads(in, defaults, m);
  read_rope(in, defaults.rope_theta, m);
  m.layers.assign(static_cast<std::size_t>(m.num_layers), LayerKind{});
}

void read_silu(JsonReader& in) {
  require_word(in, "hidden_act", "silu", {"silu", "swish"});
}

// `slides(i)` is the class's own rule, for a file without layer_types.
template <class Rule>
void read_windows(JsonReader& in, std::int64_t window, Rule slides, ModelSpec& m) {
  if (!in.has("layer_types")) {
    for (std::size_t i = 0; i < m.layers.size(); ++i) {
      if (slides(static_cast<std::int64_t>(i))) m.layers[i].window = window;
    }
    return;
  }
  const Json& types = in.value("layer_types");
  if (!types.is_array() || types.size() != m.layers.size()) {
    in.fail("layer_types",
            fmt::format("must be a list of num_hidden_layers ({}) entries, is {}", m.num_layers,
                        types.is_array() ? fmt::format("one of {}", types.size())
                                         : std::string(type_name(types))));
  }
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

std::int64_t read_window(JsonReader& in, std::int64_t if_absent) {
  return integer_unless_null(in, "sliding_window", 0, kMostPositions, if_absent, 0);
}

// Qwen's switch: a window that is written down counts only if use_sliding_window is set.
std::int64_t read_switched_window(JsonReader& in) {
  const std::int64_t window = read_window(in, 4096);
  return in.boolean_or("use_sliding_window", false) ? window : 0;
}

void read_upper_windows(JsonReader& in, ModelSpec& m) {
  const std::int64_t first = in.integer_or("max_window_layers", 0, kMostLayers, 28);
  read_windows(
      in, read_switched_window(in), [&](std::int64_t i) { return i >= first; }, m);
}

void read_attention_bias(JsonReader& in, bool fallback, ModelSpec& m) {
  m.qkv_bias = m.attention_output_bias = in.boolean_or("attention_bias", fallback);
}

// Number of experts under the names that the classes of `in` know, and how many a token visits.
MoeSpec read_experts(JsonReader& in, std::initializer_list<std::string_view> names) {
  MoeSpec moe;
  const auto* present =
      std::find_if(names.begin(), names.end(), [&](std::string_view name) { return in.has(name); });
  moe.num_experts = in.integer(present == names.end() ? *names.begin() : *present, 1, kMostExperts);
  moe.top_k = in.integer("num_experts_per_tok", 1, kMostExperts);
  if (moe.top_k > moe.num_experts) {
    in.fail("num_experts_per_tok",
            fmt::format("({}) must not exceed the {} experts", moe.top_k, moe.num_experts));
  }
  moe.aux_loss_coefficient = in.number_or("router_aux_loss_coef", 0, 1e6, 0.001);
  return moe;
}

// Every decoder_sparse_step-th layer has experts, unless listed in mlp_only_layers.
void read_qwen_moe(JsonReader& in, ModelSpec& m) {
  MoeSpec moe = read_experts(in, {"num_experts", "num_local_experts"});
  moe.moe_intermediate_size = in.integer("moe_intermediate_size", 1, kWidest);
  const std::int64_t step = in.integer_or("decoder_sparse_step", 1, kMostLayers, 1);
  const auto dense = indices_or(in, "mlp_only_layers", m.num_layers, {});
  for (std::int64_t i = 0; i < m.num_layers; ++i) {
    const bool listed = std::find(dense.begin(), dense.end(), i) != dense.end();
    m.layers[static_cast<std::size_t>(i)].moe = !listed && (i + 1) % step == 0;
  }
  m.moe = moe;
}

void read_llama(JsonReader& in, ModelSpec& m) {
  read_decoder(in, {.max_positions = 2048}, m);
  read_silu(in);
  read_attention_bias(in, false, m);
  m.mlp_bias = in.boolean_or("mlp_bias", false);
}

void read_mistral(JsonReader& in, ModelSpec& m) {
  read_decoder(in, {.kv_heads = 8, .max_positions = 131072}, m);
  read_silu(in);
  read_windows(
      in, read_window(in, 4096), [](std::int64_t) { return true; }, m);
}

void read_mixtral(JsonReader& in, ModelSpec& m) {
  read_decoder(
      in, {.kv_heads = 8, .max_positions = 131072, .rope_theta = 1e6, .norm_epsilon = 1e-5}, m);
  read_silu(in);
  read_windows(
      in, read_window(in, 0), [](std::int64_t) { return true; }, m);
  m.moe = read_experts(in, {"num_local_experts", "num_experts"});
  m.moe->moe_intermediate_size = m.intermediate_size;
  for (LayerKind& layer : m.layers) layer.moe = true;
}

void read_qwen2(JsonReader& in, ModelSpec& m) {
  read_decoder(in, {.kv_heads = 32}, m);
  read_silu(in);
  m.qkv_bias = true;  // not a key: Qwen2Attention writes bias=True
  read_upper_windows(in, m);
}

void read_qwen2_moe(JsonReader& in, ModelSpec& m) {
  read_decoder(in, {.kv_heads = 16}, m);
  read_silu(in);
  m.qkv_bias = in.boolean_or("qkv_bias", true);
  const std::int64_t end = in.integer_or("max_window_layers", 0, kMostLayers, 28);
  // Qwen2MoeConfig slides every other of the *lower* layers, unlike Qwen2Config.
  read_windows(
      in, read_switched_window(in), [&](std::int64_t i) { return i % 2 == 0 && i < end; }, m);
  read_qwen_moe(in, m);
  m.moe->norm_topk_prob = in.boolean_or("norm_topk_prob", false);
  m.moe->shared_expert_intermediate_size =
      in.integer("shared_expert_intermediate_size", 0, kWidest);
  m.moe->shared_expert_gate = true;
}

void read_qwen3(JsonReader& in, ModelSpec& m) {
  read_decoder(in, {.kv_heads = 32, .head_dim = 128}, m);
  read_silu(in);
  read_attention_bias(in, false, m);
  m.qk_norm = true;
  read_upper_windows(in, m);
}

// Qwen3MoeConfig has no head_dim of its own: absent, it is hidden_size / num_attention_heads.
void read_qwen3_moe(JsonReader& in, ModelSpec& m) {
  read_decoder(in, {.kv_heads = 4}, m);
  read_silu(in);
  read_attention_bias(in, false, m);
  m.qk_norm = true;
  read_windows(
      in, read_switched_window(in), [](std::int64_t) { return true; }, m);
  read_qwen_moe(in, m);
  m.moe->norm_topk_prob = in.boolean_or("norm_topk_prob", false);
}

void read_qwen3_vl_decoder(JsonReader& in, const Defaults& defaults, ModelSpec& m) {
  read_decoder(in, defaults, m);
  read_silu(in);
  read_attention_bias(in, false, m);
  m.qk_norm = true;
}

void read_qwen3_vl_text(JsonReader& in, ModelSpec& m) {
  read_qwen3_vl_decoder(
      in, {.kv_heads = 32, .head_dim = 128, .max_positions = 128000, .rope_theta = 5e5}, m);
}

void read_qwen3_vl_moe_text(JsonReader& in, ModelSpec& m) {
  read_qwen3_vl_decoder(in, {.kv_heads = 16, .max_positions = 128000, .rope_theta = 5e5}, m);
  read_qwen_moe(in, m);
  m.moe->norm_topk_prob = true;  // not a key: Qwen3VLMoeTextTopKRouter always divides
}

VisionSpec read_vision(JsonReader& in, const ModelSpec& text) {
  VisionSpec v;
  v.depth = in.integer_or("depth", 1, kMostLayers, 27);
  v.hidden_size = in.integer_or("hidden_size", 1, kWidest, 1152);
  v.intermediate_size = in.integer_or("intermediate_size", 1, kWidest, 4304);
  v.num_heads = in.integer_or("num_heads", 1, kMostHeads, 16);
  v.patch_size = in.integer_or("patch_size", 1, 1024, 16);
  v.temporal_patch_size = in.integer_or("temporal_patch_size", 1, 1024, 2);
  v.in_channels = in.integer_or("in_channels", 1, 1024, 3);
  v.spatial_merge_size = in.integer_or("spatial_merge_size", 1, 64, 2);
  v.num_position_embeddings = in.integer_or("num_position_embeddings", 1, kMostWords, 2304);
  v.out_hidden_size = in.integer_or("out_hidden_size", 1, kWidest, 3584);
  v.deepstack_layers = indices_or(in, "deepstack_visual_indexes", v.depth, {8, 16, 24});
  if (v.hidden_size % v.num_heads != 0) {
    in.fail("hidden_size",
            fmt::format("({}) must be a multiple of num_heads ({})", v.hidden_size, v.num_heads));
  }
  if (v.out_hidden_size != text.hidden_size) {
    in.fail("out_hidden_size", fmt::format("({}) must be the text model's hidden_size ({})",
                                           v.out_hidden_size, text.hidden_size));
  }
  if (static_cast<std::int64_t>(v.deepstack_layers.size()) > text.num_layers) {
    in.fail("deepstack_visual_indexes", "has more taps than the text model has layers");
  }
  return v;
}

// Which of the text's rotary pairs turn by time, height and width.
void read_mrope(JsonReader& text, VisionSpec& v) {
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    if (!text.has(key) || !text.value(key).is_object()) continue;
    JsonReader rope(text.value(key), text.path_of(key));
    if (!rope.has("mrope_section")) continue;
    const Json& sections = rope.value("mrope_section");
    const auto is_count = [](const Json& n) { return n.is_number_integer() && n >= 0; };
    if (!sections.is_array() || sections.size() != 3 ||
        !std::all_of(sections.begin(), sections.end(), is_count)) {
      rope.fail("mrope_section", "must be three numbers of pairs: of time, height and width");
    }
    for (std::size_t i = 0; i < 3; ++i) v.mrope_section[i] = sections[i].get<std::int64_t>();
  }
}

// The text model and the vision tower in objects of their own; tying is said outside them.
template <void (*ReadText)(JsonReader&, ModelSpec&)>
void read_qwen3_vl(JsonReader& in, ModelSpec& m) {
  JsonReader text(in.value("text_config"), in.path_of("text_config"));
  ReadText(text, m);
  m.tie_word_embeddings = in.boolean_or("tie_word_embeddings", m.tie_word_embeddings);
  JsonReader vision(in.value("vision_config"), in.path_of("vision_config"));
  m.vision = read_vision(vision, m);
  read_mrope(text, *m.vision);
}

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
  moe.sigmoid_scores = in.string_or("scoring_func", std::string(defaults.scores)) == "sigmoid";
  const std::string method = in.string_or("topk_method", std::string(defaults.method));
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
  read_deepseek(in, {.head_dim = 64, .max_positions = 4096},
                {.shared = 1,
                 .dense_layers = 3,
                 .groups = 8,
                 .topk_group = 4,
                 .mtp = 1,
                 .scaling = 2.5,
                 .norm_topk_prob = true,
                 .scores = "sigmoid",
                 .method = "noaux_tc"},
                m);
}

void read_gpt_oss(JsonReader& in, ModelSpec& m) {
  read_decoder(in,
               {.kv_heads = 8,
                .head_dim = 64,
                .max_positions = 131072,
                .rope_theta = 150000,
                .norm_epsilon = 1e-5},
               m);
  if (!in.has("rope_parameters") && !in.has("rope_scaling")) {
    m.rope_scaling = RopeScaling{
        .kind = RopeScalingKind::yarn, .factor = 32, .original_positions = 4096, .truncate = false};
  }
  read_silu(in);
  read_attention_bias(in, true, m);
  m.attention_sinks = true;
  read_windows(
      in, read_window(in, 128), [](std::int64_t i) { return i % 2 == 0; }, m);
  m.moe = read_experts(in, {"num_local_experts", "num_experts"});
  m.moe->moe_intermediate_size = m.intermediate_size;
  m.moe->router_bias = m.moe->expert_bias = true;
  for (LayerKind& layer : m.layers) layer.moe = true;
}

void read_nemotron(JsonReader& in, ModelSpec& m) {
  m.rotary_fraction = 0.5;
  read_decoder(in, {.max_positions = 4096}, m);
  require_word(in, "hidden_act", "relu2", {"relu2"});
  m.norm_epsilon = in.number_or("norm_eps", 0, 1, 1e-5);
  read_attention_bias(in, false, m);
  m.mlp_bias = in.boolean_or("mlp_bias", false);
  m.mlp = MlpKind::relu2;
  m.norm = Norm::layer_norm;  // LayerNorm1p: weights around zero, and a bias
}

void read_gpt2(JsonReader& in, ModelSpec& m) {
  m.hidden_size = in.integer("n_embd", 1, kWidest);
  m.num_layers = in.integer("n_layer", 1, kMostLayers);
  m.num_attention_heads = m.num_key_value_heads = in.integer("n_head", 1, kMostHeads);
  m.vocab_size = in.integer("vocab_size", 1, kMostWords);
  m.max_position_embeddings = in.integer_or("n_positions", 1, kMostPositions, 1024);
  m.intermediate_size = in.integer_or("n_inner", 1, 4 * kWidest, 4 * m.hidden_size);
  m.tie_word_embeddings = in.boolean_or("tie_word_embeddings", true);
  m.norm_epsilon = in.number_or("layer_norm_epsilon", 0, 1, 1e-5);
  require_word(in, "activation_function", "gelu_new",
               {"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"});
  if (m.hidden_size % m.num_attention_heads != 0) {
    in.fail("n_embd", fmt::format("({}) must be a multiple of n_head ({})", m.hidden_size,
                                  m.num_attention_heads));
  }
  m.head_dim = m.hidden_size / m.num_attention_heads;
  m.mlp = MlpKind::gelu;
  m.norm = Norm::layer_norm;
  m.position = PositionEmbedding::learned;
  m.qkv_bias = m.attention_output_bias = m.mlp_bias = true;
  m.layers.assign(static_cast<std::size_t>(m.num_layers), LayerKind{});
}

struct Architecture {
  std::string_view model_type;
  void (*read)(JsonReader&, ModelSpec&);
};

constexpr std::array kArchitectures{
    Architecture{"deepseek_v2", read_deepseek_v2},
    Architecture{"deepseek_v3", read_deepseek_v3},
    Architecture{"gpt2", read_gpt2},
    Architecture{"gpt_oss", read_gpt_oss},
    Architecture{"kimi_k2", read_deepseek_v3},
    Architecture{"llama", read_llama},
    Architecture{"mistral", read_mistral},
    Architecture{"mixtral", read_mixtral},
    Architecture{"nemotron", read_nemotron},
    Architecture{"qwen2", read_qwen2},
    Architecture{"qwen2_moe", read_qwen2_moe},
    Architecture{"qwen3", read_qwen3},
    Architecture{"qwen3_moe", read_qwen3_moe},
    Architecture{"qwen3_vl", read_qwen3_vl<read_qwen3_vl_text>},
    Architecture{"qwen3_vl_moe", read_qwen3_vl<read_qwen3_vl_moe_text>},
    Architecture{"qwen3_vl_moe_text", read_qwen3_vl_moe_text},
    Architecture{"qwen3_vl_text", read_qwen3_vl_text},
};

const Architecture& find_architecture(JsonReader& in) {
  const std::string type = in.string("model_type");
  std::vector<std::string> known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.model_type == type) return architecture;
    known.emplace_back(architecture.model_type);
  }
  if (type == "qwen3_next") {
    in.fail("model_type",
            "'qwen3_next' mixes gated delta net layers with attention, which is not modelled; "
            "qwen3_moe is its nearest kin that is");
  }
  in.fail("model_type", fmt::format("'{}' is unknown; choose one of {}{}", shown(type),
                                    fmt::join(known, ", "), did_you_mean(type, known)));
}

// In doubles, for the count itself must not overflow.
void check_total(const JsonReader& in, const ModelSpec& m) {
  double total = 0;
  std::optional<LayerKind> last;
  double last_parameters = 0;
  for (const LayerKind& kind : m.layers) {
    if (kind != last) last_parameters = static_cast<double>(layer_parameters(m, kind));
    last = kind;
    total += last_parameters;
  }
  if (total > kMostParameters) {
    in.fail("model_type",
            fmt::format("'{}' with these sizes has {:.1e} parameters, more than {:.0e}; check them",
                        m.architecture, total, kMostParameters));
  }
}

}  // namespace

ModelSpec read_model(const Json& config, std::string_view where) {
  JsonReader in(config, std::string(where) + ":");
  const Architecture& architecture = find_architecture(in);
  ModelSpec model;
  model.name = std::filesystem::path(where).stem().string();
  model.architecture = architecture.model_type;
  architecture.read(in, model);
  check_total(in, model);
  const bool sparse = std::any_of(model.layers.begin(), model.layers.end(),
                                  [](const LayerKind& layer) { return layer.moe; });
  if (!sparse && model.num_mtp_layers == 0) model.moe.reset();  // experts described, none used
  return model;
}

}  // namespace qplan
