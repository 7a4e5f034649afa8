// Mamba-2 and layers of one mixer each: what is read of them, what a layer holds, keeps, computes
// and exchanges.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "costmodel/evaluate.h"
#include "tests/complaint.h"
#include "tests/models/layer_blocks.h"
#include "tests/models/short_configs.h"

using namespace qplan;

namespace {

constexpr LayerKind kMamba{.mixer = Mixer::mamba, .mlp = false};
constexpr LayerKind kAttention{.mixer = Mixer::attention, .mlp = false};
constexpr LayerKind kExperts{.moe = true, .mixer = Mixer::none};
constexpr LayerKind kMlp{.mixer = Mixer::none};

std::string letters_of(const ModelSpec& m) {
  std::string text;
  for (const LayerKind& layer : m.layers) {
    text += layer == kMamba ? 'M' : layer == kAttention ? '*' : layer == kExperts ? 'E' : '-';
  }
  return text;
}

// Megatron-LM d98e8a64, hybrid_flops, of a mixer as wide as it is (Megatron takes two hidden
// sizes), and the router's product, which it leaves out.
double megatron_flops(const ModelSpec& m, double tokens) {
  const double h = static_cast<double>(m.hidden_size);
  const MambaSpec& s = *m.mamba;
  const auto inner = static_cast<double>(s.inner()), state = static_cast<double>(s.state_size);
  const auto query = static_cast<double>(m.num_attention_heads * m.head_dim);
  const auto key = static_cast<double>(m.num_key_value_heads * m.head_dim);
  const double mamba =
      2 * h * static_cast<double>(s.projected()) + 7 * inner * state + 2 * inner * h;
  const double attention = 4 * h * (query + key) + 2 * tokens * query;
  double sum = 2 * h * static_cast<double>(m.vocab_size);
  for (const LayerKind& layer : m.layers) {
    if (layer == kMamba) sum += mamba;
    if (layer == kAttention) sum += attention;
    if (layer == kMlp) sum += 4 * h * static_cast<double>(m.intermediate_size);
    if (layer != kExperts) continue;
    const auto width = static_cast<double>(m.moe->expert_width(m.hidden_size));
    sum += 4 * width * static_cast<double>(m.moe->moe_intermediate_size * m.moe->top_k) +
           4 * h * static_cast<double>(m.moe->shared_expert_intermediate_size) +
           2 * h * static_cast<double>(m.moe->num_experts) +
           (m.moe->latent_size > 0 ? 4 * h * width : 0);
  }
  return 3 * sum;
}

}  // namespace

TEST_CASE("layers of one mixer are read from a pattern, or from either list of words") {
  const std::string start = R"({"model_type": "nemotron_h", "n_routed_experts": 4,)";
  const std::string end = R"("num_experts_per_tok": 2})";
  CHECK(letters_of(read_short(start + R"("hybrid_override_pattern": "M*-E",)" + end)) == "M*-E");
  CHECK(letters_of(read_short(
            start + R"("layers_block_type": ["mamba", "moe", "attention", "mlp"],)" + end)) ==
        "ME*-");
  CHECK(
      letters_of(read_short(
          start + R"("layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],)" +
          end)) == "ME*-");
  const auto complaint = [&](const std::string& middle) {
    return complaint_of([&] { read_short(start + middle + end); });
  };
  CHECK(complaint(R"("hybrid_override_pattern": "MGME",)") ==
        "config.json: hybrid_override_pattern holds 'G'; only M, *, - and E are modelled");
  CHECK(complaint(R"("layers_block_type": ["mamba", "gdn", "moe", "mlp"],)") ==
        "config.json: layers_block_type holds \"gdn\"; only linear_attention, full_attention, mlp "
        "and moe are modelled");
  CHECK(complaint(R"("hybrid_override_pattern": "ME*",)") ==
        "config.json: hybrid_override_pattern names 3 layers, and num_hidden_layers is another "
        "number");
  CHECK(complaint("") ==
        "config.json: hybrid_override_pattern is missing; it says what each layer is, as in M*ME");
  CHECK(complaint(R"("hybrid_override_pattern": "ME*-", "mamba_num_heads": 20,)") ==
        "config.json: mamba_num_heads (20) must be a multiple of n_groups (8)");
  CHECK(complaint(R"("hybrid_override_pattern": "ME*-", "use_bias": true,)") ==
        "config.json: use_bias is true; only projections without biases are modelled");
  CHECK(complaint(R"("hybrid_override_pattern": "ME*-", "num_nextn_predict_layers": 1,
                     "mtp_hybrid_override_pattern": "ME",)") ==
        "config.json: mtp_hybrid_override_pattern is not attention and experts (*E), which alone "
        "are modelled");
}

TEST_CASE("Nemotron 3 is read as its class defines it") {
  const ModelSpec nano = load_model("nemotron-3-nano-30b-a3b");
  CHECK(nano.mamba.value() ==
        MambaSpec{
            .num_heads = 64, .head_dim = 64, .num_groups = 8, .state_size = 128, .step_min = 1e-3});
  CHECK(nano.position == PositionEmbedding::none);
  CHECK(nano.mlp == MlpKind::relu2);
  CHECK(nano.moe->sigmoid_scores);
  CHECK(nano.moe->latent_size == 0);
  CHECK(std::count(nano.layers.begin(), nano.layers.end(), kMamba) == 23);
  CHECK(std::count(nano.layers.begin(), nano.layers.end(), kExperts) == 23);
  const ModelSpec super = load_model("nvidia/Nemotron-3-Super-120B-A12B");
  CHECK(super.moe->expert_width(super.hidden_size) == 1024);
  CHECK(super.num_mtp_layers == 1);
  CHECK_FALSE(load_model("nemotron-h-8b").moe.has_value());
}

// What mamba_split_conv1d_scan_combined saves besides its input, the projection: the scan's output;
// the gated output is the norm's input. 32 768 bytes a token of 128 heads, 268 435 456 at 8192
// tokens, as an allocator saw it on an H200.
TEST_CASE("a Mamba-2 layer keeps what Megatron's module and mamba_ssm's function save") {
  const ModelSpec m = load_model("nemotron-3-super-120b-a12b");
  const double h = 4096, inner = 128 * 64, shared = 8 * 128, heads = 128;
  CHECK(2 * 2 * inner == 268435456.0 / 8192);
  const double kept = sum_of({{"input", 2 * h},
                              {"normed", 2 * h},
                              {"gate, x, B, C, step sizes", 2 * (2 * inner + 2 * shared + heads)},
                              {"output of the scan", 2 * inner},
                              {"gated output", 2 * inner},
                              {"normed output", 2 * inner}});
  CHECK(kept_per_token(m, RecipeKind::megatron, layer_shape(kMamba)) == kept);
  CHECK(kept_per_token(m, RecipeKind::megatron, layer_shape(kMamba, 4)) * 4 == kept);
  CHECK(kept_per_token(m, RecipeKind::megatron, layer_shape(kMamba, 1, 2)) * 2 == kept);
  // Two sequences are turned around on the way in and out; nothing more is kept.
  BlockShape two = layer_shape(kMamba);
  two.micro_batch_size = 2;
  CHECK(kept_per_token(m, RecipeKind::megatron, two) == 2 * kept);
  const auto copies = [&](const BlockShape& s) {
    const Block b = build_block(m, recipe_of(RecipeKind::megatron), s);
    std::multiset<std::int64_t> widths;
    for (const Rowwise& r : works_of<Rowwise>(b.forward)) {
      if (r.kind == RowwiseKind::copy) widths.insert(r.cols);
    }
    return widths;
  };
  CHECK(copies(layer_shape(kMamba)).empty());
  CHECK(copies(two) == std::multiset<std::int64_t>{8192, 18560});
}

TEST_CASE("our kernels of the scan keep as much as mamba_ssm's, and have scratch of their own") {
  const ModelSpec m = load_model("nemotron-3-super-120b-a12b");
  CHECK(kept_per_token(m, RecipeKind::qplan, layer_shape(kMamba)) ==
        kept_per_token(m, RecipeKind::megatron, layer_shape(kMamba)));
  const Block block = build_block(m, recipe_of(RecipeKind::qplan), layer_shape(kMamba));
  CHECK(std::count_if(block.slots.begin(), block.slots.end(), [&](const Slot& slot) {
          return slot.shape[0] == 4096 && slot.shape[1] == 128 * (128 + 10);
        }) == 1);
  CHECK(std::count_if(block.slots.begin(), block.slots.end(), [&](const Slot& slot) {
          return slot.shape[0] == 4096 && slot.shape[1] == 128 * (2 * 128 + 10 + 64 + 4 * 128 + 1);
        }) == 1);
  const StateSpaceScan scan = works_of<StateSpaceScan>(block.forward).front();
  CHECK(scan.own);
  // Two products of a chunk with a head's state, one of C with B a head, one of that with x.
  CHECK(flops(scan).value() == 2 * 4096.0 * 128 * (2 * 64 * 128 + 64 * 128 + 64 * 64));
}

TEST_CASE("in transformers' module norm and output are made again, and not kept") {
  const ModelSpec m = load_model("nemotron-3-nano-30b-a3b");
  const double h = 2688, inner = 64 * 64, shared = 8 * 128, heads = 64;
  const double kept = sum_of({{"input, normed", 4 * h},
                              {"norm in fp32", 6 * h},
                              {"gate, x, B, C, step sizes", 2 * (2 * inner + 2 * shared + heads)},
                              {"output of the scan", 2 * inner}});
  CHECK(kept_per_token(m, RecipeKind::fsdp2, layer_shape(kMamba)) == kept);
}

TEST_CASE("half layers keep what they run, and together what a whole layer keeps") {
  ModelSpec m = load_model("nemotron-3-nano-30b-a3b");
  LayerKind whole = kExperts;
  whole.mixer = Mixer::attention;
  const auto kept = [&](const LayerKind& layer) {
    return kept_per_token(m, RecipeKind::megatron, layer_shape(layer));
  };
  CHECK(kept(kAttention) + kept(kExperts) == kept(whole));
  CHECK(layer_parameters(m, kAttention) + layer_parameters(m, kExperts) ==
        layer_parameters(m, whole));
  const Block mamba = build_block(m, recipe_of(RecipeKind::megatron), layer_shape(kMamba));
  const Block experts = build_block(m, recipe_of(RecipeKind::megatron), layer_shape(kExperts));
  CHECK(works_of<Attention>(mamba.forward).empty());
  CHECK(works_of<GroupedGemm>(mamba.forward).empty());
  CHECK(works_of<StateSpaceScan>(experts.forward).empty());
  // Without a gate: one width up, and the same down.
  std::multiset<std::int64_t> widths;
  for (const GroupedGemm& g : works_of<GroupedGemm>(experts.forward)) widths.insert(g.n);
  CHECK(widths == std::multiset<std::int64_t>{1856, 2688});
}

TEST_CASE("latent experts work and are sent in their own width, the shared one is not") {
  ModelSpec m = load_model("nemotron-3-super-120b-a12b");
  BlockShape s = layer_shape(kExperts);
  s.ep = 8;
  const Block latent = build_block(m, recipe_of(RecipeKind::megatron), s);
  m.moe->latent_size = 0;
  const Block wide = build_block(m, recipe_of(RecipeKind::megatron), s);
  const auto sent = [](const Block& b) {
    Bytes most;
    for (const Collective& c : works_of<Collective>(b.forward)) most = std::max(most, c.bytes);
    return most.value();
  };
  CHECK(sent(latent) == 4096.0 * 22 * 1024 * 2);
  CHECK(sent(wide) == 4 * sent(latent));
  const auto products = [](const Block& b) {
    std::multiset<std::pair<std::int64_t, std::int64_t>> shapes;
    for (const Gemm& g : works_of<Gemm>(b.forward)) shapes.insert({g.n, g.k});
    return shapes;
  };
  using Shapes = std::multiset<std::pair<std::int64_t, std::int64_t>>;
  CHECK(products(wide) == Shapes{{512, 4096}, {5376, 4096}, {4096, 5376}});
  CHECK(products(latent) ==
        Shapes{{512, 4096}, {5376, 4096}, {4096, 5376}, {1024, 4096}, {4096, 1024}});
}

TEST_CASE("the scan's FLOPs are those of its products, chunk by chunk") {
  const StateSpaceScan scan{
      .batch = 2, .seq_len = 4096, .heads = 64, .groups = 8, .head_dim = 64, .state_size = 128};
  const double chunks = 2.0 * 4096 / 128;
  const double square = 2.0 * 128 * 128 * 128 * 8;  // C B^T of a group
  const double triangle = 128.0 * 128 * 64 * 64;    // half of a product with x, a head
  const double state = 2.0 * 128 * 64 * 128 * 64;
  CHECK(flops(scan).value() == doctest::Approx(chunks * (square + triangle + 2 * state)));
  StateSpaceScan backward = scan;
  backward.pass = Pass::backward;
  CHECK(flops(backward).value() ==
        doctest::Approx(chunks * (3 * square + 3 * triangle + 5 * state)));
  CHECK(model_flops(scan).value() == 7.0 * 2 * 4096 * 64 * 64 * 128);
  CHECK(model_flops(backward).value() == 2 * model_flops(scan).value());
  StateSpaceScan gated = scan;
  gated.gated = true;
  CHECK((parts_of(gated).traffic - parts_of(scan).traffic).value() == 2.0 * 4096 * 2 * 2 * 64 * 64);
  CHECK(to_string(Work(backward)) == "state_space_scan b2 s4096 h64/8 d64/128 chunk 128 backward");
}

TEST_CASE("a Nemotron's model FLOPs are Megatron's, of mixers as wide as they are") {
  for (const char* name :
       {"nemotron-3-nano-30b-a3b", "nemotron-3-super-120b-a12b", "nemotron-h-8b"}) {
    const ModelSpec m = load_model(name);
    for (const std::int64_t length : {4096, 32768}) {
      CAPTURE(name);
      const auto tokens = static_cast<double>(length);
      CHECK(step_model_flops(m, length, 1).value() / tokens / megatron_flops(m, tokens) ==
            doctest::Approx(1).epsilon(0.001));
    }
  }
}

TEST_CASE("tensor and context parallelism give a rank its share of the scan's heads and groups") {
  const ModelSpec m = load_model("nemotron-3-super-120b-a12b");
  const auto of = [&](int tp, int cp) {
    const Block b = build_block(m, recipe_of(RecipeKind::megatron), layer_shape(kMamba, tp, cp));
    return works_of<StateSpaceScan>(b.forward).front();
  };
  CHECK(of(2, 2).heads == 32);
  CHECK(of(2, 2).groups == 2);
  CHECK(of(2, 2).seq_len == 4096);  // whole sequences, whatever cp is
  // Eight ranks of a context share one group of a rank of tp 8.
  CHECK(of(8, 8).groups == 1);
  CHECK(of(8, 8).heads == 2);
  const Block split = build_block(m, recipe_of(RecipeKind::megatron), layer_shape(kMamba, 8, 8));
  const double there = 2.0 * (4096 / 8) * (2 * 1024 + 2 * 8 * 128 + 16),
               back = 2.0 * (4096 / 8) * 1024;
  std::multiset<std::pair<double, double>> exchanged;
  for (const Collective& c : works_of<Collective>(split.forward)) {
    if (c.axis == Axis::cp) exchanged.insert({c.bytes.value(), c.calls});
  }
  CHECK(exchanged == std::multiset<std::pair<double, double>>{{there, 5}, {back, 1}});
}
