// Llama 4: layers that rotate and attend within chunks beside layers that do neither, and experts
// that read scaled tokens.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/evaluate.h"
#include "models/parameters.h"
#include "tests/complaint.h"
#include "tests/models/layer_blocks.h"
#include "tests/models/short_configs.h"

using namespace qplan;

namespace {

constexpr LayerKind kLocal{.moe = true, .chunk = 8192};
constexpr LayerKind kGlobal{.moe = true, .rotates = false};

// "c" attends within chunks, "f" does not; "r" rotates; "e" has experts.
std::string layers_of(const ModelSpec& m) {
  std::string text;
  for (const LayerKind& layer : m.layers) {
    if (!text.empty()) text += ' ';
    text += layer.chunk > 0 ? 'c' : 'f';
    if (layer.rotates) text += 'r';
    if (layer.moe) text += 'e';
  }
  return text;
}

const std::string kStart =
    R"({"model_type": "llama4_text", "num_local_experts": 4, "num_experts_per_tok": 1)";

ModelSpec read_with(const std::string& rest) {
  return read_short(kStart + rest + "}");
}

// 2 FLOPs a weight that a token meets, and causal attention's two products over the pairs that are
// scored; times three with backward.
double closed_form(const ModelSpec& m, double tokens) {
  const double h = static_cast<double>(m.hidden_size);
  const auto query = static_cast<double>(m.num_attention_heads * m.head_dim);
  const auto key = static_cast<double>(m.num_key_value_heads * m.head_dim);
  const auto expert = static_cast<double>(m.moe->moe_intermediate_size);
  const auto words = static_cast<double>((m.vocab_size + 127) / 128 * 128);  // as they are padded
  double sum = 2 * h * words * tokens;
  for (const LayerKind& layer : m.layers) {
    const double routed = 2 * 3 * h * expert + h * static_cast<double>(m.moe->num_experts);
    const double mlp = layer.moe ? routed : 3 * h * static_cast<double>(m.intermediate_size);
    double pairs = 0;
    for (double left = tokens; left > 0;) {
      const double part = layer.chunk > 0 ? std::min(left, 8192.0) : left;
      pairs += part * part / 2;
      left -= part;
    }
    sum += 2 * (2 * h * (query + key) + mlp) * tokens + 4 * query * pairs;
  }
  return 3 * sum;
}

std::vector<std::pair<std::int64_t, std::int64_t>> sequences(const OpList& ops) {
  std::vector<std::pair<std::int64_t, std::int64_t>> found;
  for (const Attention& a : works_of<Attention>(ops)) {
    CHECK(a.causal);
    CHECK(a.q_len == a.kv_len);
    found.emplace_back(a.batch, a.q_len);
  }
  return found;
}

}  // namespace

TEST_CASE("which layers rotate, attend within chunks and have experts is read as the class does") {
  CHECK(layers_of(read_with("")) == "cre cre cre fe");
  CHECK(layers_of(read_with(R"(, "no_rope_layers": [], "moe_layers": null)")) == "cre cre cre fe");
  CHECK(layers_of(read_with(R"(, "no_rope_layer_interval": 2)")) == "cre fe cre fe");
  CHECK(layers_of(read_with(R"(, "no_rope_layers": [0, 1, 1, 1])")) == "fe cre cre cre");
  CHECK(layers_of(read_with(R"(, "interleave_moe_layer_step": 2)")) == "cr cre cr fe");
  CHECK(layers_of(read_with(R"(, "moe_layers": [0])")) == "cre cr cr f");
  CHECK(layers_of(read_with(R"(, "attention_chunk_size": null)")) == "fre fre fre fe");
  CHECK(layers_of(read_with(R"(, "layer_types": ["full_attention", "chunked_attention",
                                  "full_attention", "chunked_attention"])")) == "fre cre fre ce");
  CHECK_FALSE(read_with(R"(, "moe_layers": [])").moe.has_value());
  const auto complaint = [](const std::string& rest) {
    return complaint_of([&] { read_with(rest); });
  };
  CHECK(complaint(R"(, "no_rope_layers": [1, 1])") ==
        "config.json: no_rope_layers must be a list of num_hidden_layers (4) entries, is one of 2");
  CHECK(complaint(R"(, "layer_types": ["a", "b", "c", "d"])") ==
        "config.json: layer_types holds \"a\"; only full_attention and chunked_attention are "
        "modelled");
  CHECK(complaint(R"(, "moe_layers": [4])") ==
        "config.json: moe_layers must hold layer numbers from 0 to 3, holds 4");
}

TEST_CASE("Scout and Maverick are read as published") {
  const ModelSpec scout = load_model("meta-llama/Llama-4-Scout-17B-16E-Instruct");
  CHECK(scout.name == "llama4-scout-17b-16e");
  CHECK(std::count(scout.layers.begin(), scout.layers.end(), kLocal) == 36);
  CHECK(std::count(scout.layers.begin(), scout.layers.end(), kGlobal) == 12);
  CHECK(scout.qk_l2_norm);
  CHECK_FALSE(scout.qk_norm);
  CHECK(scout.rotary_interleaved);
  CHECK(scout.temperature_step == 8192);
  CHECK(scout.moe->sigmoid_scores);
  CHECK(scout.moe->scales_inputs);
  CHECK(scout.moe->shared_expert_intermediate_size == 8192);
  CHECK(scout.intermediate_size == 16384);
  const ModelSpec maverick = load_model("llama4-maverick-17b-128e");
  CHECK_FALSE(maverick.qk_l2_norm);
  CHECK(std::count_if(maverick.layers.begin(), maverick.layers.end(),
                      [](const LayerKind& layer) { return layer.moe; }) == 24);
  CHECK_FALSE(maverick.layers[0].moe);
  // Meta's configs say how strongly as a number.
  CHECK(read_with(R"(, "attn_temperature_tuning": 4)").temperature_step == 8192);
  CHECK(read_with(R"(, "attn_temperature_tuning": false)").temperature_step == 0);
}

TEST_CASE("of a config with a vision tower the text model is read, and named as it is there") {
  const ModelSpec m = read_short(
      R"({"model_type": "llama4", "vision_config": {"model_type": "llama4_vision_model"},
          "text_config": {"model_type": "llama4_text", "num_local_experts": 4,
                          "num_experts_per_tok": 1}})");
  ModelSpec text = read_with("");
  CHECK_FALSE(m.vision.has_value());
  CHECK(count_parameters(m).total() == count_parameters(text).total());
  const auto all = model_parameters(m);
  const auto name = [&](ParameterRole role) {
    const auto* const found =
        std::find_if(all.data(), all.data() + all.size(),
                     [role](const ModelParameter& it) { return it.parameter.role == role; });
    return tensor_place(m, *found).name;
  };
  CHECK(name(ParameterRole::lm_head) == "language_model.lm_head.weight");
  CHECK(name(ParameterRole::expert_up_proj) ==
        "language_model.model.layers.0.feed_forward.experts.gate_up_proj");
}

TEST_CASE("attention within chunks is attention over so many shorter sequences") {
  const ModelSpec m = load_model("llama4-scout-17b-16e");
  const Recipe& megatron = recipe_of(RecipeKind::megatron);
  using Sequences = std::vector<std::pair<std::int64_t, std::int64_t>>;
  BlockShape s = layer_shape(kLocal);
  s.micro_batch_size = 3;
  const auto both = [&](const BlockShape& shape) {
    const Block block = build_block(m, megatron, shape);
    CHECK(sequences(block.forward) == sequences(block.backward));
    return sequences(block.forward);
  };
  CHECK(both(s) == Sequences{{3, 4096}});
  s.seq_len = 16384;
  CHECK(both(s) == Sequences{{6, 8192}});
  s.seq_len = 20480;
  CHECK(both(s) == Sequences{{6, 8192}, {3, 4096}});
  s.documents = 2;  // of 10 240 tokens each
  CHECK(both(s) == Sequences{{6, 8192}, {6, 2048}});
  s.documents = 1;
  s.layer = kGlobal;
  CHECK(both(s) == Sequences{{3, 20480}});
  // Traded for heads, a rank's sequences are whole.
  s.layer = kLocal;
  s.seq_len = 16384;
  s.cp = 4;
  s.cp_comm = CpComm::a2a;
  CHECK(both(s) == Sequences{{6, 8192}});
}

TEST_CASE("Llama 4's model FLOPs are those of its weights and of the pairs within chunks") {
  for (const char* name : {"llama4-scout-17b-16e", "llama4-maverick-17b-128e"}) {
    const ModelSpec m = load_model(name);
    for (const std::int64_t length : {4096, 8192, 20480, 131072}) {
      CAPTURE(name);
      CAPTURE(length);
      const auto tokens = static_cast<double>(length);
      CHECK(step_model_flops(m, length, 1).value() / closed_form(m, tokens) ==
            doctest::Approx(1).epsilon(1e-9));
    }
  }
  // Of eight chunks: of three layers in four an eighth of the pairs.
  ModelSpec full = load_model("llama4-scout-17b-16e");
  const double within = products_beside_attention(full, 65536);
  for (LayerKind& layer : full.layers) layer.chunk = 0;
  CHECK(within / products_beside_attention(full, 65536) ==
        doctest::Approx(1 / (0.25 + 0.75 / 8)).epsilon(1e-9));
}

// Queries and keys as they came stay for their norm, tokens as they came for their weights.
TEST_CASE("a Llama 4 layer keeps what its norms and its scaled tokens need") {
  ModelSpec m = load_model("llama4-scout-17b-16e");
  const auto kept = [&](const LayerKind& layer, int tp = 1) {
    return kept_per_token(m, RecipeKind::megatron, layer_shape(layer, tp));
  };
  const double query = 40 * 128, key = 8 * 128, h = 5120;
  const double scaled = kept(kGlobal);
  CHECK(kept(kLocal) - kept(kGlobal) == 2 * (query + key));
  CHECK(kept(kLocal, 4) - kept(kGlobal, 4) == 2 * (query + key) / 4);
  m.qk_l2_norm = false;
  CHECK(kept(kLocal) == kept(kGlobal));
  m.moe->scales_inputs = false;
  CHECK(scaled - kept(kGlobal) == 2 * h);
}

TEST_CASE("norms without weights read and train none") {
  const ModelSpec m = load_model("llama4-scout-17b-16e");
  for (const auto kind : {RecipeKind::megatron, RecipeKind::fsdp2_compile}) {
    const Block local = build_block(m, recipe_of(kind), layer_shape(kLocal));
    const Block global = build_block(m, recipe_of(kind), layer_shape(kGlobal));
    const auto count = [](const OpList& ops, RowwiseKind wanted) {
      const auto works = works_of<Rowwise>(ops);
      return std::count_if(works.begin(), works.end(),
                           [wanted](const Rowwise& r) { return r.kind == wanted; });
    };
    CHECK(count(local.forward, RowwiseKind::l2_norm) == 1);
    CHECK(count(local.backward, RowwiseKind::l2_norm_backward) == 1);
    CHECK(count(local.forward, RowwiseKind::rope) == 1);
    CHECK(count(local.forward, RowwiseKind::scale_rows) == 1);
    CHECK(count(local.backward, RowwiseKind::scale_rows_backward) == 1);
    CHECK(count(global.forward, RowwiseKind::l2_norm) == 0);
    CHECK(count(global.forward, RowwiseKind::rope) == 0);
    CHECK(count(global.backward, RowwiseKind::rope_backward) == 0);
    for (const Op& op : local.forward) {
      const auto* work = std::get_if<Rowwise>(&op.work);
      if (work != nullptr && work->kind == RowwiseKind::l2_norm) {
        CHECK(op.parameter == kNoParameter);
      }
    }
  }
  CHECK(layer_parameters(m, kLocal) == layer_parameters(m, kGlobal));
}
