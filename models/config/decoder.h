#pragma once
// What most architectures' config.json have in common, and the limits on it. Readers take an object
// and fill a ModelSpec; they throw Error with the key's path.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "models/json.h"
#include "models/model_spec.h"

namespace qplan::config {

// Far above any model, and small enough that a layer's parameters fit 63 bits.
constexpr std::int64_t kMostLayers = std::int64_t{1} << 14;
constexpr std::int64_t kMostHeads = std::int64_t{1} << 16;
constexpr std::int64_t kMostExperts = std::int64_t{1} << 14;
constexpr std::int64_t kWidest = std::int64_t{1} << 20;
constexpr std::int64_t kMostWords = std::int64_t{1} << 28;
constexpr std::int64_t kMostPositions = std::int64_t{1} << 32;

// What classes default to where they differ; 0 heads or width: follow from the query heads.
struct Defaults {
  std::int64_t heads = 0, vocab = 0;  // 0: the key is required
  std::int64_t kv_heads = 0, head_dim = 0;
  std::int64_t intermediate = 0;  // 0: the key is required
  std::int64_t layers = 0;        // where something else than num_hidden_layers tells them
  std::int64_t max_positions = 32768;
  double rope_theta = 10000, norm_epsilon = 1e-6;
  bool tied = false;
};

// Null is a value for these keys, another than that of an absent one.
std::int64_t integer_unless_null(JsonReader& in, std::string_view key, std::int64_t low,
                                 std::int64_t high, std::int64_t if_absent, std::int64_t if_null);

// The key's word, or `fallback`: it must be one of `words`.
std::string require_word(JsonReader& in, std::string_view key, std::string_view fallback,
                         std::initializer_list<std::string_view> words);

// Sizes, heads, embeddings and rotation, which all but GPT-2 spell alike. Layers are full attention
// with dense MLPs until told otherwise.
void read_decoder(JsonReader& in, const Defaults& defaults, ModelSpec& m);

void read_silu(JsonReader& in);  // the activation must be it
void read_attention_bias(JsonReader& in, bool fallback, ModelSpec& m);

// A list of layer numbers below `end`, or `fallback`.
std::vector<std::int64_t> indices_or(JsonReader& in, std::string_view key, std::int64_t end,
                                     std::vector<std::int64_t> fallback);

// Of a config that describes a vision tower as well, which is left out and said to be: the plan is
// of training on text, and so are the counts.
void read_text_alone(JsonReader& in, void (*read)(JsonReader&, ModelSpec&), ModelSpec& m);

// sliding_window, in tokens; 0: there is none.
std::int64_t read_window(JsonReader& in, std::int64_t if_absent);

// The list layer_types, of a word a layer.
const Json& read_layer_types(JsonReader& in, std::size_t layers);

// Which layers slide: layer_types, or without it the class's own rule by the layer's number.
void read_windows(JsonReader& in, std::int64_t window,
                  const std::function<bool(std::int64_t)>& slides, ModelSpec& m);

// Three layers of four slide, say: all but every so-many-th, unless layer_types says otherwise.
void read_spaced_windows(JsonReader& in, std::int64_t window, std::int64_t every, ModelSpec& m);

// Number of experts under the names that a class knows, and how many a token visits.
MoeSpec read_experts(JsonReader& in, std::initializer_list<std::string_view> names,
                     std::initializer_list<std::string_view> per_token = {"num_experts_per_tok"});

// Groups of experts, of which a token chooses first: that they fit each other.
void check_groups(JsonReader& in, const MoeSpec& moe);

// Qwen's: every decoder_sparse_step-th layer has experts, unless listed in mlp_only_layers.
void read_qwen_moe(JsonReader& in, ModelSpec& m);

}  // namespace qplan::config
