// Llama 4: layers that rotate and attend within chunks, and between them layers that do neither;
// dense MLPs between those of one expert a token and a shared one.

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "models/config/architectures.h"
#include "models/config/decoder.h"

namespace qplan::config {
namespace {

bool is_true(const Json& value) {
  return value.is_boolean() ? value.get<bool>() : value.is_number() && value.get<double>() != 0;
}

// no_rope_layers says which layers rotate, for all its name. Published configs may leave it empty.
void read_rotation(JsonReader& in, ModelSpec& m) {
  const std::int64_t every = in.integer_or("no_rope_layer_interval", 1, kMostLayers, 4);
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    m.layers[i].rotates = (static_cast<std::int64_t>(i) + 1) % every != 0;
  }
  if (!in.has("no_rope_layers")) return;
  const Json& list = in.value("no_rope_layers");
  if (list.is_array() && list.empty()) return;
  if (!list.is_array() || list.size() != m.layers.size()) {
    in.fail("no_rope_layers",
            fmt::format("must be a list of num_hidden_layers ({}) entries, is {}", m.layers.size(),
                        list.is_array() ? fmt::format("one of {}", list.size())
                                        : std::string(type_name(list))));
  }
  for (std::size_t i = 0; i < m.layers.size(); ++i) m.layers[i].rotates = is_true(list[i]);
}

// Without layer_types those that rotate attend within chunks.
void read_chunks(JsonReader& in, ModelSpec& m) {
  const std::int64_t chunk =
      integer_unless_null(in, "attention_chunk_size", 1, kMostPositions, 8192, 0);
  const Json* types = in.has("layer_types") ? &read_layer_types(in, m.layers.size()) : nullptr;
  for (std::size_t i = 0; i < m.layers.size(); ++i) {
    LayerKind& layer = m.layers[i];
    bool chunked = layer.rotates;
    if (types != nullptr) {
      const Json& type = (*types)[i];
      chunked = type == "chunked_attention";
      if (!chunked && type != "full_attention") {
        in.fail("layer_types", fmt::format("holds {}; only full_attention and chunked_attention "
                                           "are modelled",
                                           shown(type.dump())));
      }
    }
    if (chunked) layer.chunk = chunk;
  }
}

// Every interleave_moe_layer_step-th layer, unless listed.
void read_interleaved_experts(JsonReader& in, ModelSpec& m) {
  MoeSpec moe = read_experts(in, {"num_local_experts", "num_experts"});
  moe.moe_intermediate_size = moe.shared_expert_intermediate_size = m.intermediate_size;
  moe.sigmoid_scores = moe.scales_inputs = true;
  moe.norm_topk_prob = false;  // not a key: Llama4Router takes the chosen scores as they are
  m.moe = moe;
  m.intermediate_size = in.integer_or("intermediate_size_mlp", 1, kWidest, 16384);
  const std::int64_t step = in.integer_or("interleave_moe_layer_step", 1, kMostLayers, 1);
  std::vector<std::int64_t> spaced;
  for (std::int64_t i = step - 1; i < m.num_layers; i += step) spaced.push_back(i);
  for (const std::int64_t i : indices_or(in, "moe_layers", m.num_layers, spaced)) {
    m.layers[static_cast<std::size_t>(i)].moe = true;
  }
}

}  // namespace

void read_llama4_text(JsonReader& in, ModelSpec& m) {
  read_decoder(in,
               {.kv_heads = 8,
                .head_dim = 128,
                .max_positions = 131072,
                .rope_theta = 5e5,
                .norm_epsilon = 1e-5},
               m);
  read_silu(in);
  read_attention_bias(in, false, m);
  m.rotary_interleaved = true;  // apply_rotary_emb: pairs as complex numbers
  m.qk_l2_norm = in.boolean_or("use_qk_norm", true);
  // A number in Meta's configs, a boolean in the class.
  const bool tunes =
      !in.has("attn_temperature_tuning") || is_true(in.value("attn_temperature_tuning"));
  const std::int64_t step = in.integer_or("floor_scale", 1, kMostPositions, 8192);
  if (tunes) m.temperature_step = step;
  m.temperature_scale = in.number_or("attn_scale", 0, 1e6, 0.1);
  read_rotation(in, m);
  read_chunks(in, m);
  read_interleaved_experts(in, m);
}

void read_llama4(JsonReader& in, ModelSpec& m) {
  read_text_alone(in, read_llama4_text, m);
}

}  // namespace qplan::config
