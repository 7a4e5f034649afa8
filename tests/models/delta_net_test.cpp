// Gated DeltaNet: what is read of it, what a layer of it holds, keeps, computes and exchanges.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "costmodel/evaluate.h"
#include "costmodel/fold/block_cost.h"
#include "models/error.h"
#include "tests/complaint.h"
#include "tests/models/layer_blocks.h"
#include "tests/models/short_configs.h"

using namespace qplan;

namespace {

const LayerKind kDeltaNet{.mixer = Mixer::delta_net};

std::string mixers_of(const ModelSpec& m) {
  std::string text;
  for (const LayerKind& layer : m.layers) text += layer.mixer == Mixer::delta_net ? 'd' : 'a';
  return text;
}

}  // namespace

TEST_CASE(
    "of four layers of a hybrid three have Gated DeltaNet, unless layer_types says otherwise") {
  const std::string next = R"("model_type": "qwen3_next", "num_experts": 4,
      "num_experts_per_tok": 2, "moe_intermediate_size": 16)";
  CHECK(mixers_of(read_short("{" + next + R"(, "num_hidden_layers": 6})")) == "dddadd");
  CHECK(mixers_of(read_short("{" + next + R"(, "full_attention_interval": 2})")) == "dada");
  CHECK(mixers_of(read_short("{" + next + R"(, "layer_types": ["full_attention",
      "linear_attention", "linear_attention", "full_attention"]})")) == "adda");
  CHECK(complaint_of([&] {
          read_short("{" + next + R"(, "layer_types": ["mamba", "linear_attention",
      "linear_attention", "full_attention"]})");
        }) ==
        "config.json: layer_types holds \"mamba\"; only linear_attention and full_attention are "
        "modelled");
  CHECK(complaint_of([&] { read_short("{" + next + R"(, "layer_types": ["full_attention"]})"); }) ==
        "config.json: layer_types must be a list of num_hidden_layers (4) entries, is one of 1");
  CHECK(complaint_of([&] { read_short("{" + next + R"(, "linear_num_value_heads": 20})"); }) ==
        "config.json: linear_num_value_heads (20) must be a multiple of linear_num_key_heads (16)");
}

TEST_CASE("hybrids are read as their classes define them") {
  const ModelSpec next = load_model("qwen3-next-80b-a3b");
  CHECK(next.delta_net.value() == DeltaNetSpec{.num_key_heads = 16,
                                               .num_value_heads = 32,
                                               .key_head_dim = 128,
                                               .value_head_dim = 128});
  CHECK(next.rotary_fraction == 0.25);
  CHECK(next.attention_output_gate);
  CHECK(next.zero_centered_norms);
  CHECK(next.qk_norm);
  CHECK(next.moe->shared_expert_gate);
  CHECK(next.moe->norm_topk_prob);
  const ModelSpec dense = load_model("qwen3.5-9b");
  CHECK_FALSE(dense.delta_net->packed_projections);
  CHECK_FALSE(dense.moe.has_value());
  CHECK(dense.num_mtp_layers == 1);
  // The tower that a published config describes is not part of the plan.
  Json config = model_config("qwen3.5-9b");
  config["vision_config"] = {{"depth", 27}, {"hidden_size", 1152}};
  const ModelSpec text = read_model(config, "config.json");
  CHECK_FALSE(text.vision.has_value());
  CHECK(count_parameters(text).total() == count_parameters(dense).total());
}

// Of Megatron's modules, as delta_net_part.cpp names them: in bytes, 2 an element but for fp32.
TEST_CASE("a layer of Gated DeltaNet keeps what Megatron's module and fla's kernels save") {
  const ModelSpec m = load_model("qwen3.5-9b");
  const double h = 4096, f = 12288, key = 16 * 128, value = 32 * 128, heads = 32;
  const std::map<std::string, double> kept = {
      {"input", 2 * h},
      {"normed", 2 * h},
      {"queries, keys, values, gate, strength, decay", 2 * (2 * key + 2 * value + 2 * heads)},
      {"normed queries and keys", 2 * 2 * key},
      {"their scales, fp32", 4 * 2 * 16},
      {"both for each value head", 2 * 2 * value},
      {"values", 2 * value},
      {"gate", 2 * value},
      {"summed decay, fp32", 4 * heads},
      {"strength", 2 * heads},
      {"inverse of chunks of 64", 2 * 64 * heads},
      {"output", 2 * value},
      {"normed output", 2 * value},
      {"gated output", 2 * value},
      {"MLP: input, normed", 4 * h},
      {"MLP: gate, up, product", 2 * 3 * f}};
  double sum = 0;
  for (const auto& [what, bytes] : kept) sum += bytes;
  CHECK(kept_per_token(m, RecipeKind::megatron, layer_shape(m.layers.front())) == sum);
  CHECK(kept_per_token(m, RecipeKind::megatron, layer_shape(m.layers.front(), 4)) * 4 == sum);
  // Heads instead of sequence: the same bytes, after the exchange as before it.
  const double projected = 2 * (2 * key + 2 * value + 2 * heads);
  CHECK(kept_per_token(m, RecipeKind::megatron, layer_shape(m.layers.front(), 1, 2)) * 2 == sum);
  CHECK(projected < sum);
}

// Its norm's result and its product with the gate are dropped, and made again before backward reads
// them (Megatron's CheckpointWithoutOutput).
TEST_CASE("recomputing gdn_norm_out keeps neither the normed nor the gated output") {
  const ModelSpec m = load_model("qwen3.5-9b");
  for (const int cp : {1, 2}) {
    BlockShape s = layer_shape(m.layers.front(), 1, cp);
    const double all = kept_per_token(m, RecipeKind::megatron, s);
    s.recompute = RecomputeKind::selective;
    s.recompute_modules.add(RecomputeModule::gdn_norm_out);
    CHECK(all - kept_per_token(m, RecipeKind::megatron, s) == 2.0 * 2 * 4096 / cp);
    const Block block = build_block(m, recipe_of(RecipeKind::megatron), s);
    CHECK(std::count_if(block.backward.begin(), block.backward.end(), [](const Op& op) {
            const auto* r = std::get_if<Rowwise>(&op.work);
            return r != nullptr && r->kind == RowwiseKind::gated_norm && op.recomputed;
          }) == 1);
  }
}

// fla's autograd function alone keeps 29 056 bytes a token of 32 heads with its output: 119 013 376
// at 4096 tokens, as an allocator saw it on an H200, 4096 heads of keys wide where the model shares
// them two and two.
TEST_CASE("in Hugging Face's modules it keeps what those and fla's kernels save") {
  const ModelSpec m = load_model("qwen3.5-9b");
  const double h = 4096, f = 12288, key = 16 * 128, value = 32 * 128, heads = 32;
  const double rule = 2 * 2 * key + 4 * 2 * 16 + 4 * heads + 2 * 64 * heads;
  const double unshared = 2 * 2 * value + 4 * 2 * heads + 4 * heads + 2 * 64 * heads + 2 * value;
  CHECK(unshared == 119013376.0 / 4096);
  const std::map<std::string, double> kept = {
      {"input, normed", 4 * h},
      {"norm: input and normed rows in fp32, in 16 bits counted above", 6 * h},
      {"queries, keys, values before the convolution", 2 * (2 * key + value)},
      {"strength and decay as projected", 2 * 2 * heads},
      {"the rule's: queries and keys with scales, decay, inverse", rule},
      {"values, contiguous", 2 * value},
      {"strength", 2 * heads},
      {"gated norm: four arrays of fp32's size", 4 * 4 * value},
      {"gated output", 2 * value},
      {"MLP: input, normed, norm", 10 * h},
      {"MLP: gate, up, SiLU, product", 2 * 4 * f}};
  double sum = 0;
  for (const auto& [what, bytes] : kept) sum += bytes;
  CHECK(kept_per_token(m, RecipeKind::fsdp2, layer_shape(m.layers.front())) == sum);
}

TEST_CASE("our kernels keep no inverse, and have scratch of states, W, E, D and T") {
  const ModelSpec m = load_model("qwen3.5-9b");
  const double h = 4096, f = 12288, key = 16 * 128, value = 32 * 128, heads = 32;
  const std::map<std::string, double> kept = {
      {"input, normed", 4 * h},
      {"queries, keys, values, gate, strength, decay", 2 * (2 * key + 2 * value + 2 * heads)},
      {"queries and keys of length 1, their scales", 2 * 2 * key + 4 * 2 * 16},
      {"values", 2 * value},
      {"decay, strength", 4 * heads + 2 * heads},
      {"output, gated", 4 * value},
      {"MLP: input, normed", 4 * h},
      {"MLP: gate, up, product", 2 * 3 * f}};
  double sum = 0;
  for (const auto& [what, bytes] : kept) sum += bytes;
  CHECK(kept_per_token(m, RecipeKind::qplan, layer_shape(m.layers.front())) == sum);
  const Block block = build_block(m, recipe_of(RecipeKind::qplan), layer_shape(m.layers.front()));
  CHECK(std::count_if(block.slots.begin(), block.slots.end(), [&](const Slot& slot) {
          return slot.shape[0] == 4096 && slot.shape[1] == 32 * (128 + 128 + 256 + 10);
        }) == 1);
  CHECK(std::count_if(block.slots.begin(), block.slots.end(), [&](const Slot& slot) {
          return slot.shape[0] == 4096 && slot.shape[1] == 32 * (128 + 2 * 128 + 64 + 2 * 256 + 10);
        }) == 1);
}

TEST_CASE("what Gated DeltaNet keeps grows with the sequence, and no faster") {
  const ModelSpec m = load_model("qwen3-next-80b-a3b");
  for (const RecipeKind recipe : {RecipeKind::megatron, RecipeKind::fsdp2}) {
    BlockShape s = layer_shape(m.layers.front());
    const double at_4k = kept_per_token(m, recipe, s);
    s.seq_len = 32768;
    CHECK(kept_per_token(m, recipe, s) == at_4k);
  }
}

TEST_CASE("the delta rule's FLOPs are those of its products, chunk by chunk") {
  const GatedDeltaRule rule{.batch = 2,
                            .seq_len = 4096,
                            .key_heads = 16,
                            .value_heads = 32,
                            .key_dim = 128,
                            .value_dim = 128};
  const double chunks = 2.0 * 32 * 64;  // sequences, heads, chunks of each
  const double square = 64.0 * 64 * 128, state = 64.0 * 128 * 128, inverse = 64.0 * 64 * 64;
  CHECK(flops(rule).value() ==
        doctest::Approx(chunks * (10 * square + 6 * state + inverse / 3)).epsilon(1e-12));
  GatedDeltaRule backward = rule;
  backward.pass = Pass::backward;
  CHECK(flops(backward).value() ==
        doctest::Approx(chunks * (28 * square + 16 * state + 4 * inverse)).epsilon(1e-12));
  // Twice the tokens are twice the work; key heads are shared, so their number does not count.
  GatedDeltaRule longer = rule;
  longer.seq_len *= 2;
  longer.key_heads = 32;
  CHECK(flops(longer).value() == 2 * flops(rule).value());
  // Megatron: num_v_heads * v_head_dim^2 * 4 a token, multiplied and added, backward twice.
  CHECK(model_flops(rule).value() == 2.0 * 4 * 2 * 4096 * 32 * 128 * 128);
  CHECK(model_flops(backward).value() == 2 * model_flops(rule).value());
  CHECK(parts_of(longer).within_traffic > 2 * parts_of(rule).within_traffic);
  CHECK(to_string(Work(backward)) == "gated_delta_rule b2 s4096 h32/16 d128/128 backward");
}

TEST_CASE("our kernels of the delta rule multiply what fla's do, but for the inverse") {
  GatedDeltaRule rule{.batch = 2,
                      .seq_len = 4096,
                      .key_heads = 16,
                      .value_heads = 32,
                      .key_dim = 128,
                      .value_dim = 64};
  GatedDeltaRule own = rule;
  own.own = true;
  CHECK(flops(own).value() == flops(rule).value());
  own.pass = rule.pass = Pass::backward;
  CHECK((flops(rule) - flops(own)).value() ==
        doctest::Approx(2.0 * 4096 * 32 * (4 - 1.0 / 3) * 64 * 64).epsilon(1e-9));
  CHECK(to_string(Work(own)) == "gated_delta_rule b2 s4096 h32/16 d128/64 own backward");
}

TEST_CASE("our kernels' scratch is of whole chunks") {
  GatedDeltaRule rule{.batch = 3,
                      .seq_len = 65,
                      .key_heads = 1,
                      .value_heads = 2,
                      .key_dim = 16,
                      .value_dim = 24,
                      .own = true};
  CHECK(own_scratch(rule).rows == 3 * 128);
  CHECK(own_scratch(rule).cols == 2 * (16 + 24 + 6 + 10));
}

// Megatron-LM d98e8a64, num_floating_point_operations, without the router's product, which it
// leaves out and we count: 1.3% of a model of 512 small experts.
TEST_CASE("a hybrid's model FLOPs are Megatron's") {
  const ModelSpec m = load_model("qwen3-next-80b-a3b");
  for (const std::int64_t length : {4096, 32768}) {
    const double h = 2048, query = 4096, key = 512, router = h * 512, shared_gate = h;
    const auto s = static_cast<double>(length);
    const double attends = h * (2 * query + 2 * key) + query * h + query * s;
    const double delta =
        h * (2 * 2048 + 2 * 4096 + 2 * 32) + 4 * (2 * 2048 + 4096) + 32 * 128 * 128 * 4 + h * 4096;
    const double experts = h * (512 * 10 * 3 + 512 * 3);
    const double megatron = 6 * (12 * attends + 36 * delta + 48 * experts + h * 151936);
    const double ours = step_model_flops(m, length, 1).value() / s;
    CHECK(ours / (megatron + 6 * 48 * (router + shared_gate)) == doctest::Approx(1).epsilon(0.001));
    CHECK(ours / megatron < 1.014);
  }
}

TEST_CASE("tensor and context parallelism give a rank its share of the delta rule's heads") {
  const ModelSpec m = load_model("qwen3-next-80b-a3b");
  const Block whole =
      build_block(m, recipe_of(RecipeKind::megatron), layer_shape(m.layers.front()));
  const Block split =
      build_block(m, recipe_of(RecipeKind::megatron), layer_shape(m.layers.front(), 2, 2));
  const auto one = works_of<GatedDeltaRule>(whole.forward);
  const auto quarter = works_of<GatedDeltaRule>(split.forward);
  REQUIRE(one.size() == 1);
  REQUIRE(quarter.size() == 1);
  CHECK(quarter[0].value_heads == 8);
  CHECK(quarter[0].seq_len == 4096);  // whole sequences, whatever cp is
  CHECK(flops(quarter[0]).value() * 4 == flops(one[0]).value());
  // One exchange of what the projection made, one of the output; backward the same back.
  const double sent = 2.0 * (4096 / 2) * (12352 / 2), home = 2.0 * (4096 / 2) * (4096 / 2);
  for (const OpList* ops : {&split.forward, &split.backward}) {
    std::multiset<double> exchanged;
    for (const Collective& c : works_of<Collective>(*ops)) {
      if (c.axis == Axis::cp) exchanged.insert(c.bytes.value());
    }
    CHECK(exchanged == std::multiset<double>{sent, home});
  }
}

TEST_CASE("projections are one product in Megatron, and as many as the module has elsewhere") {
  const auto products = [](const char* name, RecipeKind recipe) {
    const ModelSpec m = load_model(name);
    BlockShape s = layer_shape(m.layers.front());
    s.layer = kDeltaNet;
    const Block block = build_block(m, recipe_of(recipe), s);
    std::multiset<std::int64_t> widths;
    for (const Gemm& g : works_of<Gemm>(block.forward)) {
      if (g.k == m.hidden_size && g.n != m.intermediate_size && g.n != 2 * m.intermediate_size) {
        widths.insert(g.n);
      }
    }
    return widths;
  };
  using Widths = std::multiset<std::int64_t>;
  CHECK(products("qwen3-next-80b-a3b", RecipeKind::megatron) == Widths{12352});
  CHECK(products("qwen3-next-80b-a3b", RecipeKind::fsdp2) == Widths{64, 12288});
  CHECK(products("qwen3.5-9b", RecipeKind::megatron) == Widths{4096, 12352});  // and the output's
  CHECK(products("qwen3.5-9b", RecipeKind::fsdp2) == Widths{32, 32, 4096, 4096, 8192});
}

TEST_CASE("a gate on attention's output widens the query projection and is kept") {
  ModelSpec m = load_model("qwen3.5-9b");
  BlockShape s = layer_shape(m.layers.front());
  s.layer = m.layers[3];
  REQUIRE(s.layer.mixer == Mixer::attention);
  ModelSpec plain = m;
  plain.attention_output_gate = false;
  const std::int64_t query = m.num_attention_heads * m.head_dim;
  CHECK(layer_parameters(m, s.layer) - layer_parameters(plain, s.layer) == query * m.hidden_size);
  // The gate, and the product that the output projection reads.
  CHECK(kept_per_token(m, RecipeKind::megatron, s) -
            kept_per_token(plain, RecipeKind::megatron, s) ==
        2.0 * 2 * static_cast<double>(query));
}
