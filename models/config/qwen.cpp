// Qwen2, Qwen3, their mixtures of experts, Qwen2.5-VL and Qwen3-VL; MiMo, which is built on Qwen2.

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "models/config/architectures.h"
#include "models/config/decoder.h"
#include "models/error.h"

namespace qplan::config {
namespace {

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

void read_qwen3_decoder(JsonReader& in, const Defaults& defaults, ModelSpec& m) {
  read_decoder(in, defaults, m);
  read_silu(in);
  read_attention_bias(in, false, m);
  m.qk_norm = true;
}

void check_tower(JsonReader& in, const VisionSpec& v, const ModelSpec& text) {
  if (v.hidden_size % v.num_heads != 0) {
    in.fail("hidden_size",
            fmt::format("({}) must be a multiple of num_heads ({})", v.hidden_size, v.num_heads));
  }
  if (v.out_hidden_size != text.hidden_size) {
    in.fail("out_hidden_size", fmt::format("({}) must be the text model's hidden_size ({})",
                                           v.out_hidden_size, text.hidden_size));
  }
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
  check_tower(in, v, text);
  if (static_cast<std::int64_t>(v.deepstack_layers.size()) > text.num_layers) {
    in.fail("deepstack_visual_indexes", "has more taps than the text model has layers");
  }
  return v;
}

// Published files say in_chans, the class in_channels.
VisionSpec read_windowed_vision(JsonReader& in, const ModelSpec& text) {
  VisionSpec v;
  v.gated = true;
  v.depth = in.integer_or("depth", 1, kMostLayers, 32);
  v.hidden_size = in.integer_or("hidden_size", 1, kWidest, 3584);
  v.intermediate_size = in.integer_or("intermediate_size", 1, kWidest, 3420);
  v.num_heads = in.integer_or("num_heads", 1, kMostHeads, 16);
  v.patch_size = in.integer_or("patch_size", 1, 1024, 14);
  v.temporal_patch_size = in.integer_or("temporal_patch_size", 1, 1024, 2);
  v.in_channels = in.integer_or("in_channels", 1, 1024, in.integer_or("in_chans", 1, 1024, 3));
  v.spatial_merge_size = in.integer_or("spatial_merge_size", 1, 64, 2);
  v.out_hidden_size = in.integer_or("out_hidden_size", 1, kWidest, 3584);
  v.mrope_section = {16, 24, 24};
  read_silu(in);
  // A window is a square of so many pixels, of whole tokens of the text model.
  const std::int64_t pixels = in.integer_or("window_size", 1, 1 << 16, 112);
  const std::int64_t side = pixels / v.patch_size / v.spatial_merge_size * v.spatial_merge_size;
  if (side == 0) {
    in.fail("window_size",
            fmt::format("({}) must hold a token of {} x {} patches of {} pixels", pixels,
                        v.spatial_merge_size, v.spatial_merge_size, v.patch_size));
  }
  v.window_patches = side * side;
  v.whole_layers = indices_or(in, "fullatt_block_indexes", v.depth, {7, 15, 23, 31});
  check_tower(in, v, text);
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
void read_vision_model(JsonReader& in, void (*read_text)(JsonReader&, ModelSpec&), ModelSpec& m) {
  JsonReader text(in.value("text_config"), in.path_of("text_config"));
  read_text(text, m);
  m.tie_word_embeddings = in.boolean_or("tie_word_embeddings", m.tie_word_embeddings);
  JsonReader vision(in.value("vision_config"), in.path_of("vision_config"));
  m.vision = read_vision(vision, m);
  read_mrope(text, *m.vision);
}

}  // namespace

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

void read_qwen2(JsonReader& in, ModelSpec& m) {
  read_decoder(in, {.kv_heads = 32}, m);
  read_silu(in);
  m.qkv_bias = true;  // not a key: Qwen2Attention writes bias=True
  read_upper_windows(in, m);
}

// Qwen2 with DeepSeek-V3's kind of multi-token prediction (MiMo's own code, modeling_mimo.py; not a
// class of transformers).
void read_mimo(JsonReader& in, ModelSpec& m) {
  read_qwen2(in, m);
  m.num_mtp_layers = in.integer_or("num_nextn_predict_layers", 0, 1, 0);
}

void read_qwen2_5_vl_text(JsonReader& in, ModelSpec& m) {
  read_decoder(in, {.kv_heads = 8, .rope_theta = 1e6, .norm_epsilon = 1e-5}, m);
  read_silu(in);
  m.qkv_bias = true;  // not a key: Qwen2_5_VLAttention writes bias=True
  const std::int64_t first = in.integer_or("max_window_layers", 0, kMostLayers, 80);
  read_windows(
      in, read_switched_window(in), [&](std::int64_t i) { return i >= first; }, m);
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
  read_qwen3_decoder(in, {.kv_heads = 32, .head_dim = 128}, m);
  read_upper_windows(in, m);
}

// Qwen3MoeConfig has no head_dim of its own: absent, it is hidden_size / num_attention_heads.
void read_qwen3_moe(JsonReader& in, ModelSpec& m) {
  read_qwen3_decoder(in, {.kv_heads = 4}, m);
  read_windows(
      in, read_switched_window(in), [](std::int64_t) { return true; }, m);
  read_qwen_moe(in, m);
  m.moe->norm_topk_prob = in.boolean_or("norm_topk_prob", false);
}

void read_qwen3_vl_text(JsonReader& in, ModelSpec& m) {
  read_qwen3_decoder(
      in, {.kv_heads = 32, .head_dim = 128, .max_positions = 128000, .rope_theta = 5e5}, m);
}

void read_qwen3_vl_moe_text(JsonReader& in, ModelSpec& m) {
  read_qwen3_decoder(in, {.kv_heads = 16, .max_positions = 128000, .rope_theta = 5e5}, m);
  read_qwen_moe(in, m);
  m.moe->norm_topk_prob = true;  // not a key: Qwen3VLMoeTextTopKRouter always divides
}

void read_qwen3_vl(JsonReader& in, ModelSpec& m) {
  read_vision_model(in, read_qwen3_vl_text, m);
}

void read_qwen3_vl_moe(JsonReader& in, ModelSpec& m) {
  read_vision_model(in, read_qwen3_vl_moe_text, m);
}

// Published files keep the text's keys beside vision_config; transformers 5 writes text_config.
void read_qwen2_5_vl(JsonReader& in, ModelSpec& m) {
  const bool nested = in.has("text_config");
  JsonReader inner(nested ? in.value("text_config") : in.object(),
                   nested ? in.path_of("text_config") : in.path());
  JsonReader& text = nested ? inner : in;
  read_qwen2_5_vl_text(text, m);
  m.tie_word_embeddings = in.boolean_or("tie_word_embeddings", m.tie_word_embeddings);
  JsonReader vision(in.value("vision_config"), in.path_of("vision_config"));
  m.vision = read_windowed_vision(vision, m);
  read_mrope(text, *m.vision);
}

}  // namespace qplan::config
